// Requests of a page to its server, and the token that they bring, which the page asks for once.

export const TOKEN = "lmgym-token";

// The answer's JSON, or with `asText` its text. Throws an Error with the server's words.
export async function request(path, body, more = {}, asText = false) {
  const headers = { "Content-Type": "application/json", ...more };
  const token = localStorage.getItem(TOKEN);
  if (token) headers.Authorization = `Bearer ${token}`;
  let answer;
  try {
    answer = await fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
  } catch {
    throw new Error("The server does not answer. Is it still running?");
  }
  if (answer.status === 401) {
    await askToken(Boolean(token));
    return request(path, body, more, asText);
  }
  if (asText && answer.ok) return answer.text();
  const content = await answer.json().catch(() => null);
  if (!answer.ok) throw new Error(content?.error?.message ?? `The server answered with status ${answer.status}.`);
  return content;
}

function askToken(isWrong) {
  const dialog = document.querySelector("#token"), input = document.querySelector("#secret");
  dialog.querySelector(".error").hidden = !isWrong;
  input.value = "";
  if (!dialog.open) dialog.showModal();
  document.body.dataset.drawn = "true"; // as far as it can be
  return new Promise((resolve) => dialog.addEventListener("close", () => {
    if (input.value.trim()) localStorage.setItem(TOKEN, input.value.trim());
    resolve();
  }, { once: true }));
}

// A link may bring the token behind its #, which is not sent with the address.
export function keepToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!given) return;
  localStorage.setItem(TOKEN, given);
  history.replaceState(null, "", "/");
}
