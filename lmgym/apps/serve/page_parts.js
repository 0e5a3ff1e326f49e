// What the pages share: elements, tables, intervals in words, files for the browser, and the box of errors.

export const $ = (selector) => document.querySelector(selector);
export const by = (testid) => $(`[data-testid="${testid}"]`);
export const announce = (text) => { by("status").textContent = text; };

export function complain(error) {
  const box = by("error");
  box.hidden = false;
  box.firstElementChild.textContent = error.message;
  box.scrollIntoView({ block: "nearest" });
}

export const make = (tag, className = "", text = undefined, testid = "") => {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  if (testid) element.dataset.testid = testid;
  return element;
};

export const button = (text, testid, act, label = "") => {
  const element = make("button", "", text, testid);
  element.type = "button";
  if (label) element.setAttribute("aria-label", label);
  element.addEventListener("click", act);
  return element;
};

// A text of a person or a model, which cannot reorder what stands around it.
export const said = (text) => {
  const element = make("bdi", "text", text);
  element.dir = "auto";
  return element;
};

// A table with its heads; `named` is a line of it that a name begins.
export function table(...titles) {
  const element = make("table"), thead = make("thead"), head = make("tr");
  for (const title of titles) {
    const cell = make("th", "", title);
    cell.scope = "col";
    head.append(cell);
  }
  thead.append(head);
  element.append(thead);
  return element;
}

export function named(name, testid = "") {
  const line = make("tr", "", undefined, testid), cell = make("th");
  cell.scope = "row";
  cell.append(make("bdi", "", name));
  line.append(cell);
  return line;
}

export const percent = (x) => (x === null ? "–" : `${Math.round(100 * x)}%`);

// An estimate with its interval, each number as `shown` writes it.
export const range = (e, shown = percent) => (e.low === null ? shown(e.value) : `${shown(e.value)} (${shown(e.low)} to ${shown(e.high)})`);

// The file goes to the browser's downloads.
export function save(name, text) {
  const link = make("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/jsonl" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
