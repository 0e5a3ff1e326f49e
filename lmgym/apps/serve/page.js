// The page's state, its requests and its controls. The server's session is the truth: each answer redraws the page.
import { download, showResults, showSessions } from "./page_lists.js";
import { $, announce, button, by, complain, make, said } from "./page_parts.js";
import { draw, letter } from "./page_replies.js";
import { TOKEN, keepToken, request } from "./page_requests.js";

let state = null, mode = "chat", edited = null, current = null, isSending = false;

// ---- requests

const post = (path, body) => request(`/page/${path}`, body ?? {}, { "X-CSRF-Token": state?.csrf ?? "" });

// Runs one request at a time; `doing` says in words what the wait is for. While one runs, another is left out (a second
// click), or with `waits` comes after it. Returns the answer, or undefined.
async function ask(path, body, doing = "", waits = false) {
  while (waits && current) await current;
  if (current) return undefined;
  const run = async () => {
    document.body.dataset.busy = "true";
    by("error").hidden = true;
    const stop = doing ? showWork(doing) : () => {};
    try {
      return await post(path, body);
    } catch (error) {
      complain(error);
      return undefined;
    } finally {
      stop();
      delete document.body.dataset.busy;
      current = null;
    }
  };
  current = run();
  return current;
}

function showWork(doing) {
  const work = by("work"), bar = work.querySelector("progress"), words = work.querySelector("span");
  announce(doing);
  words.textContent = doing;
  bar.removeAttribute("value");
  work.hidden = false;
  const timer = setInterval(async () => {
    const now = await post("progress").catch(() => null);
    if (!now) return;
    if (now.progress) [bar.value, bar.max] = now.progress;
    words.textContent = now.waiting > 1 && !now.progress ? `${doing} Others are served first.` : doing;
  }, 1000);
  return () => { clearInterval(timer); work.hidden = true; };
}

// ---- what happens in a conversation

const WORDS = { say: "Writing replies…", retry: "Writing other replies…", edit: "Writing replies…", more: "Writing more replies…" };

async function does(action, body = {}) {
  const view = await ask(`${mode}/${action}`, body, WORDS[action] ?? "", ["say", "edit", "blind"].includes(action));
  if (!view) return false;
  state[mode] = view;
  redraw();
  announce(summary(view, action));
  const exchange = view.exchange;
  if (exchange?.open) $("#replies").focus();
  else if (action !== "say" && action !== "blind") (WORDS[action] ? $("#replies") : $("#message")).focus();
  if (WORDS[action]) (exchange?.open ? $("#replies") : $("#turns").lastElementChild)?.scrollIntoView({ block: "nearest" });
  if (mode === "arena" && exchange && !exchange.open) await results();
  return true;
}

function summary(view, action) {
  const exchange = view.exchange;
  if (!exchange) return "A new conversation.";
  const title = $("#replies-title").textContent;
  if (exchange.open) return `${title} ${mode === "arena" ? "Reply A and reply B are shown." : ""}`;
  if (mode === "arena") return title;
  const reply = view.history.at(-1).reply;
  const count = exchange.candidates.length;
  const which = exchange.chosen ? `Reply ${exchange.chosen} of ${count}` : "Your reply";
  return WORDS[action] || action === "pick" || action === "write" ? `${which}: ${reply.slice(0, 500)}` : title;
}

async function send() {
  const box = $("#message"), text = box.value.toWellFormed().trim();
  if (!text || isSending) return;
  isSending = true;
  const done = edited === null ? await does("say", { text }) : await does("edit", { text, turn: edited });
  isSending = false;
  if (done) {
    if (box.value.toWellFormed().trim() === text) box.value = ""; // else it is the beginning of the next one
    stopEditing();
  }
}

function startEditing(turn, text) {
  edited = turn;
  const box = $("#message");
  box.value = text;
  by("send").textContent = "Change";
  by("cancel-edit").hidden = false;
  box.focus();
}

function stopEditing() {
  edited = null;
  by("send").textContent = "Send";
  by("cancel-edit").hidden = true;
}

const edits = (text) => {
  const dialog = $("#write"), box = $("#own");
  box.value = text;
  dialog.returnValue = "";
  dialog.showModal();
  box.focus();
  dialog.addEventListener("close", () => {
    if (dialog.returnValue === "use" && box.value.trim()) does("write", { text: box.value });
  }, { once: true });
};

const why = (number) => ask("chat/why", { number });

// ---- drawing

function bubble(kind, who, text, ...buttons) {
  const item = make("li", kind);
  const head = make("span", "who");
  head.append(make("span", "", who), ...buttons);
  item.append(head, said(text || "(an empty reply)"));
  return item;
}

function redraw() {
  const view = state[mode] ?? { opening: [], history: [], exchange: null, others: [] };
  const items = view.opening.map((turn) => bubble(turn.speaker, turn.speaker === "user" ? "You" : "Model", turn.text));
  for (const [i, turn] of view.history.entries()) {
    const isLast = i === view.history.length - 1;
    const change = button("Change", `change-${turn.turn}`, () => startEditing(turn.turn, turn.user), `Change the message: ${turn.user.slice(0, 60)}`);
    const back = button("Go back to here", `back-${turn.turn}`, () => does("back", { number: turn.turn }), `Go back to the reply to: ${turn.user.slice(0, 60)}`);
    for (const one of [change, back]) one.className = "quiet";
    items.push(bubble("user", "You", turn.user, ...(isLast && mode === "chat" ? [change] : [])));
    if (turn.reply !== null) {
      const who = turn.decision === "written" ? "Model, in your words" : "Model";
      items.push(bubble("bot", who, turn.reply, ...(isLast ? [] : [back])));
    }
  }
  $("#turns").replaceChildren(...items);
  draw($("#replies"), view.exchange, mode, state.settings.best_of, does, edits, why);
  for (const box of document.querySelectorAll(".reply")) if (box.scrollHeight > box.clientHeight) box.tabIndex = 0;
  by("undo").hidden = mode !== "chat" || !view.exchange;
  $("#others").hidden = !view.others.length;
  $("#other").replaceChildren(...view.others.map((turn) => new Option(`${turn.turn}: ${turn.user}`, turn.turn)));
  $("#message").placeholder = view.exchange?.open ? "Decide about the replies first" : "Write a message";
}

function setMode(next) {
  mode = next;
  document.body.dataset.mode = mode;
  for (const one of document.querySelectorAll(".modes button")) one.setAttribute("aria-pressed", String(one.dataset.mode === mode));
  stopEditing();
  redraw();
  if (mode === "arena") results();
}

// ---- lists

async function results() {
  const found = await post("results").catch(() => null);
  if (found) showResults(found);
}

async function sessions() {
  const found = await ask("sessions");
  if (found) showSessions(found, resume);
}

async function exportPairs() {
  const box = by("exported");
  box.replaceChildren();
  try {
    download(await post("export", { scope: $('#export input[name="scope"]:checked').value }), box);
  } catch (error) {
    box.append(make("p", "bad", error.message));
  }
}

async function resume(one) {
  $("#sessions").close();
  const found = await ask("resume", { name: one.name }, "Opening…");
  if (!found) return;
  state = found;
  showSettings();
  setMode(one.mode);
  if (found.problems.length) complain(new Error(`Not all could be read: ${found.problems.join("; ")}`));
  announce("The earlier session is open.");
  $("#message").focus();
}

// ---- settings

function showSettings() {
  const { settings, policies, scorers } = state;
  $("#policy").replaceChildren(...policies.map((name) => new Option(name, name, false, name === settings.policy)));
  $("#policy").disabled = policies.length < 2;
  for (const name of ["best_of", "temperature", "max_new_tokens", "persona", "first_message"]) $(`#${name}`).value = settings[name];
  $("#best_of").max = state.max_best_of;
  $("#blind").checked = state.chat.blind;
  $("#weights").hidden = scorers.length < 2;
  $("#weights div").replaceChildren(...scorers.map((name) => {
    const label = make("label"), input = make("input", "", undefined, `weight-${name}`);
    Object.assign(input, { type: "number", min: 0, max: 100, step: 0.1, value: settings.weights[name] ?? 0 });
    input.dataset.scorer = name;
    label.append(make("bdi", "", name), input);
    return label;
  }));
}

async function changeSettings(event) {
  const input = event.target;
  if (input.id === "blind") {
    if (!(await does("blind", { on: input.checked }))) input.checked = !input.checked;
    return;
  }
  let body;
  if (input.dataset.scorer) {
    const chosen = [...document.querySelectorAll("#weights input")].filter((one) => Number(one.value) > 0);
    body = { weights: Object.fromEntries(chosen.map((one) => [one.dataset.scorer, Number(one.value)])) };
    // a scorer alone needs no weight
    if (chosen.length === 1) body.weights = { [chosen[0].dataset.scorer]: 1 };
    if (!chosen.length) {
      complain(new Error("One scorer needs a weight above 0."));
      showSettings();
      return;
    }
  } else {
    body = { [input.id]: input.type === "number" ? Number(input.value) : input.value };
    if (input.type === "number" && (!input.value || !input.checkValidity())) {
      complain(new Error(`${document.querySelector(`label[for="${input.id}"]`).textContent}: ${input.validationMessage || "needed: a number"}`));
      showSettings();
      return;
    }
  }
  const settings = await ask("settings", body, "", true);
  if (settings) state.settings = settings;
  showSettings();
  if (settings && !state.chat.exchange?.open) redraw();
}

// ---- keys

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const box = $("#message"), typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
  if (event.key === "Escape" && event.target === box) {
    if (!$("#replies").hidden) $("#replies").focus();
  } else if (event.key === "Escape") {
    box.focus();
  } else if ($("#replies").contains(event.target) && !typing) {
    onReplyKey(event);
  }
}

function onReplyKey(event) {
  const exchange = state[mode].exchange, cards = [...document.querySelectorAll(".card")];
  const press = (testid) => by(testid)?.click();
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (step && !event.target.matches(".reply, pre, .scroll")) {
    const now = cards.indexOf(event.target.closest(".card"));
    cards[Math.max(0, Math.min(cards.length - 1, now < 0 ? (step > 0 ? 0 : cards.length - 1) : now + step))].focus();
  } else if (/^[1-9]$/.test(event.key) && Number(event.key) <= exchange.candidates.length) {
    press(`${mode === "arena" ? "vote" : "prefer"}-${letter(mode, Number(event.key))}`);
  } else {
    const target = { t: "tie", x: "reject", w: "write", r: "retry" }[event.key.toLowerCase()];
    if (!target) return;
    press(target);
  }
  event.preventDefault();
}

// ---- beginning

function connect() {
  document.addEventListener("keydown", onKey);
  $("#composer").addEventListener("submit", (event) => { event.preventDefault(); send(); });
  $("#message").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  $("#others").addEventListener("submit", (event) => { event.preventDefault(); does("back", { number: Number($("#other").value) }); });
  for (const one of document.querySelectorAll(".modes button")) one.addEventListener("click", () => setMode(one.dataset.mode));
  $("#settings form").addEventListener("change", changeSettings);
  $("#settings form").addEventListener("submit", (event) => event.preventDefault());
  by("error").lastElementChild.addEventListener("click", () => { by("error").hidden = true; });
  by("new-conversation").addEventListener("click", () => does("back", { number: 0 }));
  by("undo").addEventListener("click", () => does("undo"));
  by("cancel-edit").addEventListener("click", () => { $("#message").value = ""; stopEditing(); });
  by("open-sessions").addEventListener("click", sessions);
  by("open-export").addEventListener("click", () => { by("exported").replaceChildren(); $("#export").showModal(); });
  by("export").addEventListener("click", exportPairs);
  by("open-help").addEventListener("click", () => $("#help").showModal());
  by("open-settings").addEventListener("click", (event) => {
    const open = $("#settings").classList.toggle("open");
    event.target.setAttribute("aria-expanded", String(open));
  });
  by("forget-token").addEventListener("click", () => { localStorage.removeItem(TOKEN); location.reload(); });
}

async function begin() {
  keepToken();
  connect();
  try {
    state = await post("state");
    while (state.busy) {
      await new Promise((resolve) => setTimeout(resolve, 1000));
      state = await post("state");
    }
  } catch (error) {
    complain(error);
    return;
  }
  by("mode-arena").hidden = state.arena === null;
  by("forget-token").hidden = !localStorage.getItem(TOKEN);
  showSettings();
  setMode("chat");
  document.body.dataset.drawn = "true";
  $("#message").focus();
}

begin();
