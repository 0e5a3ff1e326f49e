// The page to label on. The server's record is the truth: each answer redraws the page.
import { $, announce, button, by, complain, make, named, range, said, save, table } from "./page_parts.js";
import { keepToken, request } from "./page_requests.js";

const RATER = "lmgym-rater";
const SPEAKERS = { user: "User", assistant: "Model", tool: "Result of a tool", system: "Instructions to the model" };
const VERDICTS = { 1: "first", 2: "second", "=": "tie", "?": "cannot say" };
let state = null, isAsking = false;

const plural = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

// One request at a time: a second key press before the answer is left out.
async function ask(path, body) {
  if (isAsking) return undefined;
  isAsking = true;
  document.body.dataset.busy = "true";
  by("error").hidden = true;
  try {
    return await request(`/label/${path}`, body);
  } catch (error) {
    complain(error);
    return null;
  } finally {
    isAsking = false;
    delete document.body.dataset.busy;
  }
}

// ---- what a rater does

async function judge(verdict) {
  if (!state?.pair) return;
  const found = await ask("verdict", { rater: state.rater, pair: state.pair.id, verdict });
  if (found === null) await again();
  if (found) show(found, "");
}

async function undo() {
  if (!state?.last) return;
  const found = await ask("undo", { rater: state.rater, pair: state.last });
  if (found === null) await again();
  if (found) show(found, "Undone. ");
}

// After a refusal: another tab may have gone on. The words of the refusal stay.
async function again() {
  try {
    show(await request("/label/state", { rater: state.rater }), "");
  } catch { /* the first error stands */ }
}

async function begin(name) {
  const found = await ask("state", { rater: name });
  if (!found) return;
  localStorage.setItem(RATER, found.rater);
  $("#who").hidden = true;
  show(found, "");
}

function askName() {
  $("#work").hidden = true;
  by("change-name").hidden = true;
  $("#who").hidden = false;
  $("#name").value = localStorage.getItem(RATER) ?? "";
  $("#name").focus();
}

// ---- drawing

function show(found, before) {
  state = found;
  const { pair, judged, pairs } = state, name = by("change-name");
  name.hidden = false;
  name.replaceChildren("Rater: ", make("bdi", "", state.rater));
  name.setAttribute("aria-label", `Rater: ${state.rater}. Change the name`);
  $("#work").hidden = false;
  Object.assign(by("progress"), { max: pairs, value: judged });
  by("progress-words").textContent = `${judged.toLocaleString("en")} of ${plural(pairs, "pair")} judged`;
  by("agreement").textContent = agreement();
  $("#pair").hidden = !pair;
  $("#done").hidden = Boolean(pair);
  if (pair) drawPair(pair);
  else $("#done").textContent = "You have judged every pair. Thank you! You may close this page, or undo your latest verdict.";
  drawButtons();
  announce(pair ? `${before}${by("progress-words").textContent}. The next pair.` : $("#done").textContent);
  for (const box of document.querySelectorAll(".reply, .said, pre, .thoughts .text")) if (box.scrollHeight > box.clientHeight) box.tabIndex = 0;
  if (!document.querySelector("dialog[open]")) (pair ? $("#pair") : $("#done")).focus({ preventScroll: true });
  scrollTo(0, 0);
  document.body.dataset.drawn = "true";
}

function agreement() {
  const same = state.agreement;
  if (!same.rows) return "";
  return `Agreement so far, on pairs that you have judged: others said the same as you in ${range(same)} of ${plural(same.rows, "case")}.`;
}

function drawPair(pair) {
  $("#tools").hidden = !pair.tools;
  $("#tools pre").textContent = pair.tools;
  $("#turns").replaceChildren(...pair.turns.map((turn) => {
    const item = make("li", turn.role === "user" ? "user" : "bot"), head = make("span", "who", SPEAKERS[turn.role] ?? turn.role);
    item.append(head, ...thoughts(turn), box("said", turn.text));
    return item;
  }));
  by("question").textContent = state.question;
  by("cards").replaceChildren(...pair.replies.map((reply, i) => {
    const card = make("article", "card", undefined, `card-${i + 1}`), title = make("h3", "", `Reply ${i + 1}`);
    title.id = `reply-${i + 1}`;
    card.setAttribute("aria-labelledby", title.id);
    card.append(title, ...thoughts(reply), box("reply", reply.text, `text-${i + 1}`));
    return card;
  }));
}

function box(kind, text, testid = "") {
  const found = make("div", kind, undefined, testid);
  found.append(said(text || "(empty)"));
  return found;
}

function thoughts(turn) {
  if (!turn.thoughts) return [];
  const folded = make("details", "thoughts"), text = said(turn.thoughts);
  folded.append(make("summary", "", "What the model thought first"), text);
  return [folded];
}

function drawButtons() {
  const key = (text, words) => [make("kbd", "", text), ` ${words}`];
  const one = (text, words, testid, act) => {
    const made = button("", testid, act);
    made.append(...key(text, words));
    return made;
  };
  const verdicts = state.pair ? [
    one("1", "Reply 1 is better", "verdict-1", () => judge("first")), one("2", "Reply 2 is better", "verdict-2", () => judge("second")),
    one("=", "Equally good", "verdict-tie", () => judge("tie")), one("?", "Cannot say", "verdict-cannot", () => judge("cannot say")),
  ] : [];
  const back = one("U", "Undo", "undo", undo);
  back.classList.add("undo");
  back.hidden = !state.last;
  $("#decide").replaceChildren(...verdicts, back);
}

// ---- lists

async function overview() {
  const found = await ask("overview", {});
  if (!found) return;
  const rows = table("rater", "verdicts", "chose the reply shown first", "reply 1", "reply 2", "equal", "cannot say");
  for (const rater of found.raters) {
    const line = named(rater.name, `rater-${rater.column}`), first = make("td", "", range(rater.share_first));
    if (rater.leans) first.append(make("span", "badge warn", `leans to the ${rater.leans}`));
    const cell = (x) => make("td", "number", String(x));
    line.append(cell(rater.verdicts), first, ...[rater.first, rater.second, rater.ties, rater.cannot_say].map(cell));
    rows.append(line);
  }
  const scroll = make("div", "scroll");
  scroll.tabIndex = 0;
  scroll.setAttribute("role", "region");
  scroll.setAttribute("aria-labelledby", "overview-title");
  scroll.append(rows);
  const same = found.agreement;
  const words = `${plural(found.votes, "vote")} on ${found.rows.toLocaleString("en")} of ${plural(found.pairs, "pair")}; ` +
    `${plural(found.rows_of_several_raters, "pair")} with several raters.`;
  const agree = same.rows ? ` Two raters give a pair the same verdict in ${range(same)} of ${plural(same.rows, "comparison")}.` : "";
  const about = "In brackets: 95% intervals. The order of replies is random for each rater, so that who looks at the texts chooses " +
    "the first one about half of the time; “leans” stands where chance alone would hardly explain it.";
  by("overview").replaceChildren(make("p", "", words + agree), ...(found.raters.length ? [scroll, make("p", "hint", about)] : []));
  $("#overview").showModal();
}

async function download() {
  try {
    const text = await request("/label/labels.jsonl", {}, {}, true);
    if (!text) throw new Error("There are no labels yet: a pair needs a verdict other than “cannot say”.");
    save("labels.jsonl", text);
  } catch (error) {
    complain(error);
  }
}

// ---- keys and beginning

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  if (document.querySelector("dialog[open]") || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) || $("#work").hidden) return;
  if (event.key in VERDICTS) judge(VERDICTS[event.key]);
  else if (event.key === "Backspace" || event.key.toLowerCase() === "u") undo();
  else return;
  event.preventDefault();
}

function start() {
  keepToken();
  document.addEventListener("keydown", onKey);
  $("#who").addEventListener("submit", (event) => { event.preventDefault(); begin($("#name").value.toWellFormed()); });
  by("change-name").addEventListener("click", askName);
  by("open-overview").addEventListener("click", overview);
  by("download").addEventListener("click", download);
  by("open-help").addEventListener("click", () => $("#help").showModal());
  by("error").lastElementChild.addEventListener("click", () => { by("error").hidden = true; });
  const known = localStorage.getItem(RATER);
  if (known) begin(known).then(() => { if (!state) askName(); document.body.dataset.drawn = "true"; });
  else {
    askName();
    document.body.dataset.drawn = "true";
  }
}

start();
