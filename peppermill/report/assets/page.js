"use strict";
/* The slider, the sortable tables, the choice of a run, and when each figure is drawn. */
(() => {
  const content = JSON.parse(document.getElementById("runs").textContent);
  const articles = [...document.querySelectorAll("article.run")];
  const CONFIG = { responsive: true, displaylogo: false, displayModeBar: false };
  const positions = content.runs.map((run) => (run.sweep ? run.sweep.nearest : 0));
  const drawn = new Set(), waiting = new Set();

  function figureOf(element) {
    const article = element.closest("article.run"), k = articles.indexOf(article), run = content.runs[k], c = Figures.colors();
    const { figure, index, score } = element.dataset;
    const builders = {
      sigma: () => Figures.sigma(run.sweep, positions[k], c),
      reliability: () => Figures.reliability(run.sweep.reliability[positions[k]], c, false),
      method: () => Figures.reliability(run.methods[index], c, true),
      members: () => Figures.members(run.items[index], c),
      classes: () => Figures.classes(run.classes, c),
      curvature: () => Figures.curvature(run.curvature, c),
      race: () => Figures.race(run.race, c),
      sizes: () => Figures.sizes(run.sizes, c),
      uncertainty: () => Figures.uncertainty(run.uncertainty[index], c),
      risk: () => Figures.risk(run.risk, c),
      overfitting: () => Figures.overfitting(run.overfitting, c),
      change: () => Figures.change(content.compared, score, content.formats[score], c),
      gains: () => Figures.gains(content.runs, content.compared.map((row) => row.title), c),
    };
    return builders[figure]();
  }

  function draw(element) {
    const { data, layout } = figureOf(element), config = element.dataset.figure === "members" ? { ...CONFIG, staticPlot: true } : CONFIG;
    if (drawn.has(element)) return Plotly.react(element, data, layout, config);
    drawn.add(element);
    Plotly.newPlot(element, data, layout, config);
    if (element.dataset.figure === "sigma") element.on("plotly_click", (event) => move(element.closest(".explorer"), event.points[0].pointNumber));
  }

  // In the order of the page: what the reader sees at once, the rest in pauses, so that the page answers meanwhile.
  async function drawVisible() {
    const root = document.documentElement;
    for (const element of document.querySelectorAll(".plot")) {
      if (drawn.has(element) || element.closest("[hidden]")) continue;
      if (!root.dataset.opened && element.getBoundingClientRect().top > innerHeight) root.dataset.opened = Math.round(performance.now());
      if (root.dataset.opened) await new Promise((resume) => setTimeout(resume));
      if (!drawn.has(element)) draw(element);
    }
    root.dataset.opened ??= Math.round(performance.now());
    root.dataset.drawn = Math.round(performance.now());
  }

  function show(k) {
    articles.forEach((article, other) => { article.hidden = other !== k; });
    const chosen = document.getElementById("chosen");
    if (chosen) chosen.value = String(k + 1);
    if (!window.Plotly) return;
    for (const element of drawn) if (articles[k].contains(element)) Plotly.Plots.resize(element);
    drawVisible();
  }

  function write(explorer) {
    const k = Number(explorer.dataset.run), sweep = content.runs[k].sweep, at = positions[k], texts = sweep.texts[at];
    const input = explorer.querySelector("input"), last = sweep.sigmas.length - 1;
    const where = at === 0 ? "the network itself" : at === sweep.nearest ? "σ*, the best" : "";
    const spoken = Object.entries(texts.values).map(([name, value]) => `${sweep.titles[name]} ${value}`).join(", ");
    input.value = at;
    input.style.setProperty("--filled", `${last ? (100 * at) / last : 0}%`);
    input.setAttribute("aria-valuetext", `sigma ${texts.sigma}${where ? ", " + where : ""}: ${spoken}`);
    explorer.querySelector(".sigma").textContent = texts.sigma;
    explorer.querySelector(".where").textContent = where;
    explorer.querySelector(".tempered").textContent = texts.tempered;
    for (const [name, value] of Object.entries(texts.values)) {
      explorer.querySelector(`[data-score="${CSS.escape(name)}"]`).textContent = value;
      const change = explorer.querySelector(`[data-change="${CSS.escape(name)}"]`);
      change.textContent = at === 0 ? "" : texts.changes[name];
      change.className = "change " + ["better", "", "worse"][texts.ways[name] + 1];
    }
  }

  // Texts at once; figures when the browser gets to it, and only for the last of several moves.
  function move(explorer, at) {
    positions[Number(explorer.dataset.run)] = Number(at);
    write(explorer);
    if (waiting.has(explorer) || !window.Plotly) return;
    waiting.add(explorer);
    setTimeout(() => {
      waiting.delete(explorer);
      explorer.querySelectorAll(".plot").forEach(draw);
      explorer.dataset.shown = positions[Number(explorer.dataset.run)];
    });
  }

  function prepare(explorer) {
    const sweep = content.runs[Number(explorer.dataset.run)].sweep, marks = explorer.querySelector(".marks"), last = sweep.sigmas.length - 1;
    const place = (element, at) => { element.style.left = `${last ? (100 * at) / last : 0}%`; marks.append(element); };
    const button = (name, label, at) => {
      const made = Object.assign(document.createElement("button"), { type: "button", className: name, textContent: label });
      made.addEventListener("click", () => move(explorer, at));
      place(made, at);
    };
    sweep.sigmas.forEach((_, at) => place(document.createElement("i"), at));
    button("first", "σ = 0", 0);
    if (sweep.nearest > 0) button("star", "σ*", sweep.nearest);
    explorer.querySelector("input").addEventListener("input", (event) => move(explorer, event.target.value));
    write(explorer);
  }

  function sort(button) {
    const heading = button.closest("th"), row = heading.parentElement, body = row.closest("table").tBodies[0];
    const column = [...row.children].indexOf(heading), up = heading.getAttribute("aria-sort") !== "ascending";
    const key = (line) => line.children[column].dataset.sort ?? "";
    const order = (a, b) => {
      const [x, y] = [key(a), key(b)];
      if (x === "" || y === "") return (x === "") - (y === "");
      const step = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
      return up ? step : -step;
    };
    for (const other of row.children) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", up ? "ascending" : "descending");
    body.append(...[...body.rows].sort(order));
  }

  async function unpack(element) {
    const letters = atob(element.textContent), bytes = new Uint8Array(letters.length);
    for (let k = 0; k < letters.length; k += 1) bytes[k] = letters.charCodeAt(k);
    const source = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
    document.head.append(Object.assign(document.createElement("script"), { textContent: source }));
    element.remove();
  }

  document.querySelectorAll(".explorer").forEach(prepare);
  document.querySelectorAll("table.sortable thead button").forEach((button) => button.addEventListener("click", () => sort(button)));
  document.querySelectorAll("[data-show]").forEach((button) => button.addEventListener("click", () => {
    show(Number(button.dataset.show) - 1);
    articles[Number(button.dataset.show) - 1].scrollIntoView();
  }));
  document.getElementById("chosen")?.addEventListener("change", (event) => show(Number(event.target.value) - 1));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => [...drawn].forEach(draw));
  show(0);
  unpack(document.getElementById("plotly")).then(drawVisible).catch((error) => {
    const note = document.getElementById("failed");
    note.hidden = false;
    note.textContent = `The figures could not be drawn (${error.message}). They need a browser of 2023 or newer; texts and tables are complete.`;
  });
})();
