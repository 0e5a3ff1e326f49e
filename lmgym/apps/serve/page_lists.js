// What is listed beside a conversation: the arena's results, earlier sessions, and the pairs that were exported.
import { button, make, named, percent, range, said, save, table } from "./page_parts.js";

const points = (x) => (x === null ? "–" : (x > 0 ? "+" : "") + Math.round(x));

export function showResults(found) {
  const section = document.querySelector("#results"), box = section.querySelector(".scroll"), notes = section.querySelector(".notes");
  if (!found.votes) {
    box.replaceChildren(make("p", "hint", "No votes yet."));
    notes.replaceChildren();
    return;
  }
  const rows = table("model", "votes", "won, tied, lost", "share of points", "rating");
  for (const row of found.policies) {
    const line = named(row.policy, `result-${row.policy}`);
    line.append(make("td", "", String(row.votes)), make("td", "", `${row.wins}, ${row.ties}, ${row.losses}`),
      make("td", "", range(row.share, percent)), make("td", "", range(row.rating, points)));
    rows.append(line);
  }
  const about = "Everybody's votes on this server, with 95% intervals in brackets. A tie, or neither, is half a point. The rating " +
    "is in Elo points (Bradley-Terry model): a model that is 100 points above another gets about 64 of 100 votes.";
  box.replaceChildren(rows, make("p", "hint", about));
  notes.replaceChildren(...found.notes.map((note) => make("li", "", note)));
}

export function showSessions(found, resume) {
  const dialog = document.querySelector("#sessions");
  const items = found.map((one) => {
    const item = make("li"), words = make("div");
    const title = make("div");
    title.append(said(one.begins || "(no message)"));
    const when = new Date(1000 * one.changed).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
    const kind = one.mode === "arena" ? "comparison of models, " : "";
    words.append(title, make("small", "", `${when}: ${kind}${one.turns} message${one.turns === 1 ? "" : "s"}, ${one.decisions} decided`));
    item.append(words);
    if (one.current) item.append(make("small", "", "this one"));
    else item.append(button("Continue", "resume", () => resume(one), `Continue: ${one.begins.slice(0, 60)}`));
    return item;
  });
  dialog.querySelector("ul").replaceChildren(...(items.length ? items : [make("li", "hint", "There are none yet.")]));
  dialog.showModal();
}

export function download(found, box) {
  save(found.name, found.jsonl);
  const few = found.decisions < found.enough ? ` Training needs about ${found.enough} choices; these are few.` : "";
  box.append(make("p", "", `${found.name}: ${found.pairs} pair${found.pairs === 1 ? "" : "s"} from ${found.decisions} choice${found.decisions === 1 ? "" : "s"}.${few}`),
    make("p", "", "To train a scorer on them, or the model itself, run this where the file is:"),
    ...found.commands.map((command) => make("pre", "command", command)));
}
