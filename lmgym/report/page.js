"use strict";
// Draws the charts in the page's width and colours, and fills the viewer of episodes. No request leaves the page.
(() => {
  const read = (id) => JSON.parse(document.getElementById(`${id}-json`).textContent);
  const charts = read("charts");
  const make = (tag, className, text) => {
    const element = document.createElement(tag);
    element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const dark = matchMedia("(prefers-color-scheme: dark)");

  // the names of the lines with their colours, and with their meanings when pointed at
  function fillLegend(element, spec) {
    const { series = [], terms = {} } = spec.usermeta ?? {};
    if (series.length < 2 && !series.some((name) => terms[name])) return;
    const colors = theme(series.length).range.category;
    element.replaceChildren(...series.map((name, place) => {
      const one = make("span", "");
      const dot = make("i", "");
      dot.style.background = series.length < 2 ? theme().mark.color : colors[place];
      const word = make(terms[name] ? "abbr" : "bdi", "", name);
      if (terms[name]) Object.assign(word, { title: terms[name], tabIndex: 0 });
      one.append(dot, word);
      return one;
    }));
  }

  // the chosen colours, or as many hues as there are lines: no two lines of a chart have one colour
  function categories(count) {
    const light = ["#2f6fed", "#d9602b", "#1a8f5a", "#8b5cf6", "#b8860b", "#c2417c", "#4b8b9b", "#7a6a58"];
    const night = ["#7aa7ff", "#ff9d6b", "#5fd39a", "#b99bff", "#e3bd57", "#f285b5", "#7fc4d6", "#c3b09a"];
    const chosen = dark.matches ? night : light;
    if (count <= chosen.length) return chosen;
    const lightness = (place) => (dark.matches ? 62 : 36) + 18 * (place % 2);
    const hue = (place) => Math.round((360 * place) / count);
    return Array.from({ length: count }, (_, place) => `hsl(${hue(place)}, 65%, ${lightness(place)}%)`);
  }

  function theme(count = 1) {
    const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    const soft = color("--soft"), line = color("--line");
    return {
      background: "transparent",
      font: "system-ui, sans-serif",
      view: { stroke: null },
      axis: { labelColor: soft, titleColor: soft, gridColor: line, domainColor: line, tickColor: line,
              titleFontWeight: "normal", labelFontSize: 11, titleFontSize: 11, tickCount: 5 },
      range: { category: categories(count) },
      mark: { color: color("--accent") },
      rule: { color: soft },
      text: { color: soft },
    };
  }

  async function draw(element) {
    const spec = structuredClone(charts[element.dataset.chart]);
    const config = theme(spec.usermeta?.series?.length);
    Object.assign(spec, { width: "container", autosize: { type: "fit", contains: "padding" }, config });
    fillLegend(element.previousElementSibling, spec);
    const tooltip = { theme: dark.matches ? "dark" : "light" };
    try {
      await vegaEmbed(element, spec, { actions: false, renderer: "svg", tooltip });
    } catch (error) {
      element.textContent = `This chart could not be drawn: ${error}`;
    }
  }

  const places = [...document.querySelectorAll("[data-chart]")];
  async function drawAll() {
    if (typeof vegaEmbed === "undefined") {
      for (const place of places) place.textContent = 'Charts need the package vl-convert-python: pip install "lmgym"';
    } else {
      for (const place of places) await draw(place);
    }
    document.body.dataset.drawn = "true";
  }
  drawAll();
  dark.addEventListener("change", drawAll);

  const shown = (x) => (Math.abs(x) >= 0.01 || x === 0 ? x.toFixed(3) : x.toPrecision(2));

  function turn(content) {
    const element = make("div", "turn");
    const prompt = make("div", "prompt");
    prompt.append(make("bdi", "", content.prompt));
    const reply = make("div", "reply after");
    reply.append(make("bdi", "", content.text || "(an empty reply)"));
    const figures = make("p", "figures");
    for (const [name, value] of content.scores) {
      const one = make("span", "", `${name} `);
      const mark = name !== "advantage" ? "" : value > 0 ? "up" : value < 0 ? "down" : "";
      one.append(make("b", mark, shown(value)));
      figures.append(one);
    }
    if (content.notes) figures.append(make("span", "", content.notes));
    reply.append(figures);
    element.append(prompt, reply);
    return element;
  }

  for (const [id, episodes] of Object.entries(read("episodes"))) {
    const viewer = document.querySelector(`[data-episodes="${id}"]`);
    const [updates, names] = [viewer.querySelector(".update"), viewer.querySelector(".episode")];
    const show = () => {
      const episode = episodes[Number(names.value)];
      viewer.querySelector(".turns").replaceChildren(...(episode ? episode.turns.map(turn) : []));
    };
    const list = () => {
      names.replaceChildren();
      episodes.forEach((episode, number) => {
        if (String(episode.update) !== updates.value) return;
        const one = typeof episode.total === "number" ? `, reward ${shown(episode.total)}` : ", reward failed";
        const total = episode.total === "" ? "" : one;
        names.append(new Option(`${episode.name}${total}`, number));
      });
      show();
    };
    for (const update of new Set(episodes.map((episode) => episode.update))) updates.append(new Option(update, update));
    updates.selectedIndex = updates.options.length - 1;
    updates.addEventListener("change", list);
    names.addEventListener("change", show);
    list();
  }

  // pairs of replies: sorted by a change, and the first of many
  const FIRST = 8;
  for (const list of document.querySelectorAll(".pairs")) {
    const inOrder = [...list.children];
    const changes = new Map(inOrder.map((pair) => [pair, JSON.parse(pair.dataset.changes)]));
    const label = (change) => `change of ${change.name}${change.of ? `, ${change.of}` : ""}`;
    const labels = new Set([...changes.values()].flat().map(label));
    const bar = make("div", "sort");
    const all = make("button", "", `show all ${inOrder.length}`);
    all.type = "button";
    let open = inOrder.length <= FIRST;
    const show = () => {
      [...list.children].forEach((pair, place) => { pair.hidden = !open && place >= FIRST; });
      all.hidden = open;
    };
    if (labels.size && inOrder.length > 1) {
      const order = make("select", "order");
      order.append(new Option("as in the data", ""));
      for (const one of labels) {
        order.append(new Option(`largest rise: ${one}`, `1 ${one}`), new Option(`largest fall: ${one}`, `-1 ${one}`));
      }
      order.addEventListener("change", () => {
        const [sign, name] = [parseInt(order.value), order.value.replace(/^\S+ /, "")];
        const by = (pair) => changes.get(pair).find((change) => label(change) === name)?.by;
        const place = (pair) => { const found = by(pair); return found === undefined ? Infinity : -sign * found; };
        list.append(...(order.value ? [...inOrder].sort((a, b) => place(a) - place(b) || 0) : inOrder));
        show();
      });
      const named = make("label", "", "order ");
      named.append(order);
      bar.append(named);
    }
    all.addEventListener("click", () => { open = true; show(); });
    list.before(bar);
    list.after(all);
    show();
  }

  // `lmgym watch`: ask its server for changes, and come back to the same place
  if (document.body.dataset.live) {
    const key = "lmgym-scroll";
    scrollTo(0, Number(sessionStorage.getItem(key) || 0));
    let version = "";
    setInterval(async () => {
      try {
        const found = await (await fetch("/version")).text();
        if (version && found !== version) {
          sessionStorage.setItem(key, scrollY);
          location.reload();
        }
        version = found;
      } catch {
        // the server was stopped: the page stays as it is
      }
    }, 2000);
  }
})();
