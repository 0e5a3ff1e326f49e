// The replies to a message as cards, with a bar for each scorer. Texts are set as text, never as markup.

import { button, make, named, said, table } from "./page_parts.js";

export const letter = (mode, number) => (mode === "arena" ? "AB"[number - 1] : String(number));

// `most` is the largest number beside it, so that all have as many decimals.
function figure(value, most = Math.abs(value)) {
  if (value === null) return "failed";
  if (value === 0 || (Math.abs(value) >= 1e-3 && most < 1e5)) return value.toFixed(most < 100 ? 3 : 1);
  return value.toExponential(2);
}

const ordinal = (n) => n + (["th", "st", "nd", "rd"][n % 100 > 10 && n % 100 < 14 ? 0 : n % 10] ?? "th");

// The lowest and the highest score of a scorer among all replies: the scale that the cards share.
function scale(exchange, name) {
  const known = exchange.candidates.map((one) => one.scores[name].score).filter((value) => value !== null);
  return [Math.min(...known), Math.max(...known)];
}

function bars(exchange, candidate) {
  const list = make("ul", "bars", undefined, `bars-${candidate.number}`);
  for (const name of exchange.scorers) {
    const { score, rank } = candidate.scores[name];
    const [low, high] = scale(exchange, name);
    const row = make("li");
    const place = rank === null ? "failed" : exchange.candidates.length > 1 ? `${ordinal(rank)} of ${exchange.candidates.length}` : "";
    const head = make("span", "scorer");
    head.append(make("bdi", "", name));
    const track = make("span", "track");
    track.setAttribute("aria-hidden", "true");
    if (score !== null && high > low) {
      const bar = make("span", rank === 1 ? "bar best" : "bar");
      bar.style.width = `${4 + (96 * (score - low)) / (high - low)}%`;
      track.append(bar);
    }
    row.append(head, make("span", "score", figure(score, Math.max(Math.abs(low), Math.abs(high)))), track, make("span", "rank", score === null ? "" : place));
    list.append(row);
  }
  return list;
}

function badges(exchange, candidate, mode) {
  const row = make("span", "badges");
  const picked = exchange.decision === "picked" && exchange.chosen === candidate.number;
  if (picked) row.append(make("span", "badge mine", mode === "arena" ? "your vote" : "your choice"));
  if (!exchange.open && mode === "arena" && !picked && exchange.chosen === candidate.number) row.append(make("span", "badge", "used in the conversation"));
  if (!exchange.open && mode === "chat" && exchange.selected === candidate.number && exchange.candidates.length > 1) {
    row.append(make("span", "badge", exchange.scorers.length ? `best by ${exchange.selected_by}` : "used"));
  }
  if (candidate.cut) row.append(make("span", "badge warn", "cut off: too long"));
  return row;
}

function reasons(found) {
  const box = make("div", "why", undefined, `why-${found.number}`);
  const rows = table("scorer", "this reply", "an empty reply", "difference");
  for (const row of found.scorers) {
    const line = named(row.name);
    for (const value of [row.score, row.empty, row.change]) line.append(make("td", "number", figure(value)));
    rows.append(line);
  }
  const scroll = make("div", "scroll");
  scroll.append(rows);
  box.append(make("p", "hint", `${found.tokens} tokens (words or parts of words). The difference is what the reply earned over saying nothing.`), scroll);
  for (const row of found.scorers) {
    if (row.failed) box.append(make("p", "bad", `${row.name} failed: ${row.failed}`));
    if (!row.seen) continue;
    const details = make("details");
    const cut = row.seen.cut ? `; ${row.seen.cut} tokens at the beginning were left out` : "";
    const text = make("pre", "", (row.seen.whole ? "" : "… ") + row.seen.text);
    text.dir = "auto";
    details.append(make("summary", "", `What ${row.name} read: ${row.seen.tokens} tokens${cut}`), text);
    box.append(details);
  }
  return box;
}

// What a model wrote to itself before its answer, folded.
function thoughtOf(candidate, id) {
  const details = make("details", "", undefined, `thought-${id}`);
  const text = make("div", "reply");
  text.append(said(candidate.thought));
  details.append(make("summary", "", "Its thought"), text);
  return details;
}

// `does(action, body)` sends an action; `why(number)` gets the reasons of the scores.
function card(exchange, candidate, mode, does, edits, why) {
  const id = letter(mode, candidate.number);
  const element = make("article", "card", undefined, `card-${id}`);
  element.tabIndex = -1;
  element.id = `card-${candidate.number}`;
  element.setAttribute("aria-labelledby", `card-title-${candidate.number}`);
  if (exchange.chosen === candidate.number) element.classList.add("chosen");
  const head = make("h3");
  head.id = `card-title-${candidate.number}`;
  head.append(make("span", "", `Reply ${id}`));
  if (candidate.policy) head.append(" by ", make("bdi", "policy", candidate.policy, `policy-${id}`));
  const top = make("div", "top");
  top.append(head, badges(exchange, candidate, mode));
  const text = make("div", "reply", undefined, `text-${id}`);
  if (candidate.text) text.append(said(candidate.text));
  else text.append(make("em", "", "(an empty reply)"));
  element.append(top);
  if (candidate.thought) element.append(thoughtOf(candidate, id));
  element.append(text);
  if (exchange.scorers.length) element.append(bars(exchange, candidate));
  const row = make("div", "buttons");
  if (mode === "chat") {
    const prefer = button("Prefer", `prefer-${id}`, () => does("pick", { number: candidate.number }), `Prefer reply ${id}`);
    const edit = button("Edit", `edit-${id}`, () => edits(candidate.text), `Edit reply ${id} and use your version`);
    row.append(prefer, edit);
    if (exchange.scorers.length) {
      const toggle = button("Why", `ask-why-${id}`, async () => {
        const shown = element.querySelector(".why");
        if (shown) shown.remove();
        else {
          const found = await why(candidate.number);
          if (found) element.append(reasons(found));
        }
        toggle.setAttribute("aria-expanded", String(Boolean(element.querySelector(".why"))));
      }, `Why reply ${id} has its scores`);
      toggle.setAttribute("aria-expanded", "false");
      row.append(toggle);
    }
  } else if (exchange.open) {
    row.append(button(`${id} is better`, `vote-${id}`, () => does("pick", { number: candidate.number })));
  }
  element.append(row);
  return element;
}

export function draw(section, exchange, mode, best_of, does, edits, why) {
  section.hidden = exchange === null || (mode === "chat" && exchange.candidates.length === 1 && !exchange.scorers.length && !exchange.open);
  if (exchange === null) {
    section.querySelector(".cards").replaceChildren();
    return;
  }
  const count = exchange.candidates.length;
  section.querySelector("h2").textContent = title(exchange, mode);
  section.querySelector(".hint").textContent = hint(exchange, mode);
  section.querySelector(".cards").dataset.count = count;
  section.querySelector(".cards").replaceChildren(
    ...exchange.candidates.map((one) => card(exchange, one, mode, does, edits, why)));
  const row = section.querySelector(".decide");
  row.replaceChildren();
  if (mode === "arena") {
    if (exchange.open) row.append(button("Equally good", "tie", () => does("tie")), button("Neither is good", "reject", () => does("reject")));
  } else {
    if (count > 1) row.append(button("All equally good", "tie", () => does("tie")));
    row.append(
      button(count > 1 ? "None is good" : "It is not good", "reject", () => does("reject")),
      button("Write my own", "write", () => edits("")),
      button("Other replies", "retry", () => does("retry")),
      button(`${best_of} more`, "more", () => does("more", { number: best_of }), `${best_of} more replies beside these`));
  }
  row.hidden = !row.childElementCount;
  section.querySelector(".notes").replaceChildren(...exchange.notes.map((note) => make("li", "", note)));
}

const DECISIONS = {
  picked: "You preferred a reply.",
  written: "You wrote the reply.",
  tie: "You called the replies equally good.",
  rejected: "You called none of the replies good.",
};

function title(exchange, mode) {
  const count = exchange.candidates.length;
  if (exchange.open) return mode === "arena" ? "Which reply is better?" : `${count} replies: which is best?`;
  if (mode === "arena") {
    const names = exchange.candidates.map((one) => one.policy || "unknown");
    const picked = exchange.decision === "picked" ? `You voted for ${names[exchange.chosen - 1]}.` : DECISIONS[exchange.decision];
    return `${picked} A was ${names[0]}, B was ${names[1]}.`;
  }
  return count === 1 ? "The reply" : `${count} replies`;
}

function hint(exchange, mode) {
  if (exchange.open) return mode === "arena" ? "" : "Scores are hidden until you decide.";
  const parts = mode === "chat" && exchange.decision ? [DECISIONS[exchange.decision]] : [];
  if (exchange.decision === "rejected" && mode === "chat") parts.push("The scorers' choice stays in the conversation until you get other replies or write your own.");
  if (exchange.scorers.length && exchange.candidates.length > 1) parts.push("Each bar runs from the lowest to the highest score of its scorer among these replies.");
  return parts.join(" ");
}
