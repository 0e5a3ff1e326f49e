
// The viewer of a tournament's rounds: two of a question side by side, over the text that they quote.
(() => {
  const make = (tag, className, ...content) => {
    const element = document.createElement(tag);
    element.className = className;
    element.append(...content);
    return element;
  };
  const share = (p) => p.toFixed(3);

  // P(win) of both debaters as a bar, Debater_A's at the left
  function bar(label, p) {
    const inner = make("i", "");
    inner.style.width = `${100 * p}%`;
    return make("div", "bar", `${label}: A ${share(p)}`, make("i", "", inner), `B ${share(1 - p)}`);
  }

  function piece(content, lead) {
    const text = make("bdi", "", content.text);
    if (!content.status) return text;
    if (!content.span) {
      const quote = make("span", `quote ${content.status}`, "“", text, "”");
      quote.title = content.status === "invalid" ? "not in the text" : "without its place in the text";
      return quote;
    }
    const link = make("a", `quote ${content.status}`, "“", text, "”");
    link.href = "#";
    link.title = `${content.status}: show it in the text`;
    link.addEventListener("click", (event) => {
      event.preventDefault();
      lead(content.span);
    });
    return link;
  }

  function speech(content, lead) {
    const own = ["scratchpad", "reasoning", "position"].includes(content.kind) ? " private" : "";
    const kind = content.kind === "speech" ? "" : `, ${content.kind}`;
    const element = make("div", `speech ${content.speaker}${own}`);
    element.append(make("span", "side", `${content.speaker}${kind}, round ${content.round}`));
    element.append(...content.pieces.map((one) => piece(one, lead)));
    if (!content.pieces.length) element.append("(nothing)");
    if (content.notes) element.append(make("p", "figures", content.notes));
    return element;
  }

  function round(content, lead) {
    const element = make("div", "");
    for (const side of content.sides) {
      const right = side.correct ? make("span", "good", " (right)") : "";
      element.append(make("div", "", make("b", "", side.agent), ` ${side.player}: `, make("bdi", "", side.position), right));
    }
    for (const slot of content.slots) {
      element.append(make("div", "slot", ...slot.speeches.map((one) => speech(one, lead))));
      if (slot.p_first !== null) element.append(bar("P(win)", slot.p_first));
    }
    const verdict = content.verdict;
    if (!verdict) return element;
    const words = verdict.winner ? `${verdict.winner} wins` : "a tie";
    const right = verdict.right === null || !verdict.winner ? "" : verdict.right ? ", which is right" : ", which is wrong";
    const unread = verdict.readable ? "" : " (the verdict could not be read)";
    element.append(make("p", verdict.right ? "good" : "bad", `Verdict: ${words}${right}${unread}`));
    element.append(bar("verdict", verdict.p_first));
    return element;
  }

  for (const [id, { questions }] of Object.entries(JSON.parse(document.getElementById("viewers-json").textContent))) {
    const viewer = document.querySelector(`[data-viewer="${id}"]`);
    const chooser = make("select", "question");
    questions.forEach((question, number) => chooser.append(new Option(question.question, number)));
    const columns = make("div", "columns"), page = make("div", "page");
    page.tabIndex = 0;
    const choices = [make("select", "left"), make("select", "right")];
    const places = choices.map(() => make("div", "round"));
    const asked = make("p", "about");
    choices.forEach((choice, side) => {
      columns.append(make("div", "", make("label", "", side ? "round beside it " : "round ", choice), places[side]));
    });
    viewer.append(make("label", "", "question ", chooser), asked, columns, make("h3", "", "The text"), page);
    const question = () => questions[Number(chooser.value)];

    function lead([start, end]) {
      for (const mark of page.querySelectorAll("mark")) {
        const at = Number(mark.dataset.start);
        mark.classList.toggle("found", at >= start && at < end);
      }
      const first = page.querySelector("mark.found");
      if (!first) return;
      page.scrollTop = first.offsetTop - page.clientHeight / 3;
      page.scrollIntoView({ block: "nearest" });
    }

    function show() {
      const { text, rounds } = question();
      const spans = [];
      choices.forEach((choice, side) => {
        const content = rounds[Number(choice.value)];
        places[side].replaceChildren(content ? round(content, lead) : "");
        for (const slot of content ? content.slots : [])
          for (const one of slot.speeches) spans.push(...one.pieces.flatMap((p) => (p.span ? [p.span] : [])));
      });
      page.replaceChildren(...text.map(([at, words]) => {
        if (!spans.some(([start, end]) => at >= start && at < end)) return document.createTextNode(words);
        const mark = make("mark", "", words);
        mark.dataset.start = at;
        return mark;
      }));
      if (!text.length) page.append("(this question has no text)");
    }

    function list() {
      const { rounds, options, correct } = question();
      const right = correct === null ? "" : `; the right one: ${options[correct]}`;
      asked.textContent = `Answers: ${options.join(" / ")}${right}`;
      choices.forEach((choice, side) => {
        choice.replaceChildren(...rounds.map((one, number) => new Option(one.name, number)));
        choice.selectedIndex = Math.min(side, rounds.length - 1);
        columns.children[side].hidden = side >= rounds.length;
      });
      show();
    }

    chooser.addEventListener("change", list);
    for (const choice of choices) choice.addEventListener("change", show);
    list();
  }
})();
