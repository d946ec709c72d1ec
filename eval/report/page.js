"use strict";
// Builds the page from the run's data. Nothing here parses markup: all text of the run goes through
// textContent (el() appends strings as text nodes).
const COLORS = {blue: "#1d4ed8", amber: "#b4610b", green: "#12704a", grey: "#77808b", red: "#b3261e"};
const CONDITIONS = [
  ["retrieved", "Retrieved documents", "what the trained retriever finds", COLORS.blue],
  ["gold", "Gold document", "handed the right document", COLORS.amber],
  ["wrong", "Wrong document", "handed another entity’s document", "#8b95a1"],
  ["closed_book", "Closed book", "no document at all", "#b3bac3"]];

const run = JSON.parse(document.getElementById("run-data").textContent);
const main = document.getElementById("main");
const sections = [];
const state = {axis: "step", weight: 0.95};
const charts = [];

const pct = (v, digits = 1) => finite(v) ? v.toFixed(digits) + " %" : "–";
const at = (object, ...path) => path.reduce((o, key) => (o === null || o === undefined ? undefined : o[key]), object);
const picture = (index, alt) => finite(index) && run.images[index]
  ? el("img", {class: "pic", src: run.images[index], alt, loading: "lazy"}) : null;

function section(id, short_title, title, lead, ...content) {
  main.append(el("section", {id}, el("h2", {}, title), el("p", {class: "lead"}, lead || ""), ...content));
  sections.push([id, short_title]);
}

// ---- header ----
function logo() {
  const mark = svg("svg", {width: 22, height: 22, viewBox: "0 0 22 22", "aria-hidden": "true"});
  mark.append(svg("rect", {x: 1, y: 4, width: 11, height: 14, rx: 2.5, fill: "none", stroke: "#9fb8e8", "stroke-width": 1.8}),
    svg("rect", {x: 7, y: 1, width: 11, height: 14, rx: 2.5, fill: "#16305c", stroke: "#fff", "stroke-width": 1.8}),
    svg("path", {d: "M10 6h5M10 9.5h5", stroke: "#fff", "stroke-width": 1.6}),
    svg("circle", {cx: 16.5, cy: 16.5, r: 4, fill: "#ffd166"}));
  return mark;
}

function tile(label, value, unit, note) {
  return el("div", {class: "tile"}, el("div", {class: "label"}, label),
    el("div", {class: "value"}, value, unit && el("small", {}, " " + unit)), note && el("div", {class: "note"}, note));
}

function interval(values) {
  return Array.isArray(values) && finite(values[0]) && finite(values[1])
    ? `95 %: ${values[0].toFixed(1)} – ${values[1].toFixed(1)}` : null;
}

function compact(n) {
  if (!finite(n)) return "–";
  for (const [size, unit] of [[1e9, " B"], [1e6, " M"], [1e3, " k"]]) {
    if (Math.abs(n) >= size) return Number((n / size).toPrecision(3)) + unit;
  }
  return String(n);
}

function stopwatch(seconds) {
  const s = Math.round(seconds), two = (n) => String(n).padStart(2, "0");
  return s < 3600 ? [`${Math.floor(s / 60)}:${two(s % 60)}`, "min"]
    : [`${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)}`, "h"];
}

function drawHeader() {
  const held = at(run, "summary", "held_out"), train = at(run, "summary", "train") || {};
  const tiles = [];
  const add = (label, value, note) => {
    if (finite(value)) tiles.push(tile(label, value.toFixed(1), "%", note));
  };
  add("Exact match", at(held, "em", "retrieved"), "with retrieved documents");
  add("Closed book", at(held, "em", "closed_book"), "without any document");
  add("Recall@1", at(held, "recall_at", "1"), "right document first");
  add("Edit follow", at(held, "edit_follow"), "answers follow the index");
  const seconds = finite(train.seconds) ? train.seconds : run.progress.seconds;
  const steps = finite(train.steps) ? train.steps : run.progress.last_step;
  if (finite(seconds)) tiles.push(tile("Training", ...stopwatch(seconds),
    finite(train.examples_per_s) ? `${short(train.examples_per_s)} examples/s` : null));
  if (finite(steps)) tiles.push(tile("Steps", short(steps), null,
    finite(train.parameters) ? `${compact(train.parameters)} parameters` : null));
  const facts = Object.entries(run.facts).map(([key, value]) => el("span", {}, key + " ", el("b", {}, String(value))));
  document.getElementById("header").append(
    el("div", {class: "brand"}, logo(), el("b", {}, "Contexture"), "run", el("b", {}, run.name)),
    el("h1", {class: "verdict"}, run.verdict), el("div", {class: "tiles"}, tiles),
    facts.length ? el("div", {class: "facts"}, facts) : "",
    run.problems.length ? el("div", {class: "warn"}, "⚠ Part of this run could not be read; the rest is shown.",
      el("ul", {}, run.problems.map((p) => el("li", {}, p)))) : "");
  document.title = `${run.name} · Contexture`;
}

// ---- results ----
function bar(value, range, color) {
  const track = el("div", {class: "track"}, el("i", {style: `width:${Math.max(0, Math.min(100, value))}%;--c:${color}`}));
  if (Array.isArray(range) && finite(range[0]) && finite(range[1])) {
    track.append(el("span", {class: "ci", style: `left:${range[0]}%;width:${Math.max(0.3, range[1] - range[0])}%`}));
  }
  return track;
}

function figureCell(value, range, strong) {
  const text = finite(value) ? value.toFixed(1) : "–";
  return el("td", {class: "n"}, strong ? el("b", {}, text) : text,
    Array.isArray(range) && finite(range[0]) ? el("span", {}, `${range[0].toFixed(1)} – ${range[1].toFixed(1)}`) : null);
}

function gainNote(held) {
  const {retrieved, gold, closed_book: closed} = held.em || {};
  if (!finite(retrieved) || !finite(closed)) return null;
  const range = at(held, "intervals", "gain"), points = (v) => v.toFixed(1) + " points";
  const note = el("p", {class: "gain"}, "Looking things up is worth ", el("b", {}, points(retrieved - closed)),
    Array.isArray(range) && finite(range[0]) ? ` (${range[0].toFixed(1)} – ${range[1].toFixed(1)})` : "", " of exact match here.");
  if (finite(gold)) note.append(" With the right document always in hand it would be ", el("b", {}, points(gold - closed)), ".");
  return note;
}

function drawResults() {
  const held = at(run, "summary", "held_out");
  if (!held) return;
  const rows = CONDITIONS.filter(([key]) => finite(at(held, "em", key))).map(([key, name, note, color]) =>
    el("tr", {}, el("td", {class: "name"}, name, el("span", {}, note)),
      el("td", {}, bar(held.em[key], at(held, "intervals", "em", key), color)),
      figureCell(held.em[key], at(held, "intervals", "em", key), true),
      figureCell(at(held, "f1", key), at(held, "intervals", "f1", key), false)));
  const pairs = [];
  const pair = (name, note, value, range, unit = " %", digits = 1) => {
    if (!finite(value)) return;
    pairs.push(el("dt", {}, name, el("span", {}, note)),
      el("dd", {}, el("b", {}, value.toFixed(digits) + unit), Array.isArray(range) && finite(range[0])
        ? el("span", {}, `${range[0].toFixed(digits)} – ${range[1].toFixed(digits)}`) : null));
  };
  for (const k of Object.keys(held.recall_at || {}).sort((a, b) => a - b)) {
    pair(`Recall@${k}`, k === "1" ? "a gold document comes first" : `a gold document is among the first ${k}`,
      held.recall_at[k], at(held, "intervals", "recall_at", k));
  }
  pair("MRR", "mean of 1 / place of the first gold document", held.mrr, at(held, "intervals", "mrr"));
  pair("Edit follow", "a fact was changed in the index: the answer changed with it", held.edit_follow,
    at(held, "intervals", "edit_follow"));
  const worth = held.retrieval_utility || {}, worthRange = at(held, "intervals", "retrieval_utility") || {};
  const utility = (name, note, value, range) => pair(name, note, value, range, " nats", 2);
  utility("Retrieval utility", "how much likelier a retrieved document makes the right answer than no document does",
    worth.retrieved, worthRange.retrieved);
  (worth.by_rank || []).forEach((value, k) =>
    utility(`Utility of rank ${k + 1}`, "of the document in this place", value, at(worthRange, "by_rank", k)));
  utility("Utility of the gold document", "found or not", worth.gold, worthRange.gold);
  section("results", "Results", "What the documents are worth",
    `The same model answers the same ${finite(held.n) ? short(held.n) + " " : ""}held-out questions four times; only the documents it may read differ.`,
    el("div", {class: "split"},
      el("div", {class: "card"}, el("h3", {}, "Exact match by what the model may read"),
        el("table", {class: "bars"}, el("thead", {}, el("tr", {}, el("th", {}, "The model reads"),
          el("th", {}, "0 to 100 %, whisker = 95 % interval"), el("th", {class: "n"}, "Exact match"), el("th", {class: "n"}, "F1"))),
        el("tbody", {}, rows)), gainNote(held)),
      el("div", {class: "card"}, el("h3", {}, "Retrieval"), el("dl", {class: "pairs"}, pairs))));
}

// ---- curves ----
function series(name, source, key, color, dash) {
  return source[key] && source[key].some(finite)
    ? {name, x: {step: source.step, time: source.time_s}, y: source[key], color, dash} : null;
}

function addChart(spec) {
  spec.series = spec.series.filter(Boolean);
  if (!spec.series.length) return null;
  const chart = new LineChart(spec, state);
  charts.push(chart);
  return chart.node;
}

function redraw() { for (const chart of charts) chart.draw(); }

function axisControls(withSmoothing) {
  const controls = el("div", {class: "controls"});
  if (run.train.time_s && run.train.time_s.some(finite)) {
    const buttons = [["step", "step"], ["time", "time"]].map(([key, name]) =>
      el("button", {type: "button", "data-axis": key, "aria-pressed": String(state.axis === key), onclick: () => {
        state.axis = key;
        document.querySelectorAll("[data-axis]").forEach((b) =>
          b.setAttribute("aria-pressed", String(b.getAttribute("data-axis") === key)));
        redraw();
      }}, name));
    controls.append(el("span", {}, "Horizontal axis "), el("span", {class: "seg"}, buttons));
  }
  if (withSmoothing) {
    controls.append(el("label", {}, "Smoothing ", el("input", {type: "range", min: 0, max: 0.99, step: 0.01,
      value: state.weight, oninput: (event) => { state.weight = Number(event.target.value); redraw(); }})));
  }
  return controls;
}

function drawRetrieval() {
  const {evals, refreshes: marks} = run, markName = "index refresh";
  const retrieval = [
    addChart({title: "Retrieval", note: "held-out questions; the index is rebuilt at each dotted line", percent: true, range: [0, 100], marks, markName,
      series: [series("recall@1", evals, "recall_at.1", COLORS.blue), series("recall@5", evals, "recall_at.5", COLORS.green, "7 4"),
        series("MRR", evals, "mrr", COLORS.amber, "2 4")]}),
    addChart({title: "Exact match", note: "held-out questions, by what the model may read", percent: true, range: [0, 100], marks, markName,
      series: CONDITIONS.map(([key, name, , color], i) => series(name.toLowerCase(), evals, "em." + key,
        [color, color, COLORS.grey, COLORS.red][i], ["none", "7 4", "2 4", "9 3 2 3"][i]))})].filter(Boolean);
  if (retrieval.length) {
    section("retrieval", "Retrieval", "Learning to look things up", "Retriever and reader are trained together, by one loss.",
      axisControls(false), el("div", {class: "grid2"}, retrieval));
  }
}

function drawCurves() {
  const {train, evals, refreshes: marks} = run, markName = "index refresh";
  const lossSeries = [series("training loss", train, "loss", COLORS.blue), series("held-out loss", evals, "loss", COLORS.amber, "7 4")];
  if (lossSeries[0]) lossSeries[0].markMissing = true;
  const thinned = run.progress.thinned > 1 ? ` · each point is the mean of ${run.progress.thinned} steps` : "";
  const curves = [
    addChart({title: "Loss", note: "raw (pale) and smoothed" + thinned, canLog: true, smoothable: true, marks, markName, series: lossSeries}),
    addChart({title: "Gradient norm", note: "before clipping" + thinned, canLog: true, smoothable: true, series: [series("gradient norm", train, "grad_norm", COLORS.green)]}),
    addChart({title: "Learning rate", note: "as applied at each step", canLog: true, series: [series("learning rate", train, "lr", COLORS.amber)]}),
    addChart({title: "Throughput", note: "examples a second", smoothable: true, series: [series("examples/s", train, "examples_per_s", COLORS.blue)]}),
    addChart({title: "Tokens", note: "tokens a second, padding left out", smoothable: true, series: [series("tokens/s", train, "tokens_per_s", COLORS.grey)]})].filter(Boolean);
  for (const key of run.extra_series) {
    curves.push(addChart({title: key, note: "as logged", canLog: true, smoothable: true, series: [series(key, train, key, COLORS.grey)]}));
  }
  if (curves.length) section("curves", "Curves", "Training curves", "Point at a curve to read it.", axisControls(true), el("div", {class: "grid2"}, curves));
}

// ---- samples ----
const fold = (text) => text.toLowerCase();

// Where any of the strings stands in text as a whole word: sorted, without overlaps.
function findAll(text, strings) {
  const low = fold(text), hits = [];
  if (low.length !== text.length) return hits;
  for (const {value, kind} of strings) {
    const want = fold(value.trim());
    if (!want) continue;
    for (let i = low.indexOf(want); i >= 0; i = low.indexOf(want, i + want.length)) {
      const before = low[i - 1] || " ", after = low[i + want.length] || " ";
      if (!/[\p{L}\p{N}]/u.test(before) && !/[\p{L}\p{N}]/u.test(after)) hits.push({from: i, to: i + want.length, kind});
    }
  }
  hits.sort((a, b) => a.from - b.from || b.to - a.to);
  return hits.filter((hit, i) => hits.slice(0, i).every((other) => other.to <= hit.from));
}

function highlighted(text, strings) {
  const parts = [];
  let end = 0;
  for (const hit of findAll(text, strings)) {
    parts.push(text.slice(end, hit.from), el("mark", {class: hit.kind === "answer" ? "answer" : null}, text.slice(hit.from, hit.to)));
    end = hit.to;
  }
  parts.push(text.slice(end));
  return parts;
}

// The reference answers, and the model's answer where it is none of them.
function wanted(sample) {
  const strings = sample.references.map((value) => ({value, kind: "reference"}));
  if (sample.answer && !sample.em) strings.push({value: sample.answer, kind: "answer"});
  return strings;
}

function documentText(text, strings) {
  const limit = 230;
  if (text.length <= limit + 40) return el("p", {}, highlighted(text, strings));
  const first = findAll(text, strings)[0];
  const from = first && first.to > limit ? Math.max(0, text.lastIndexOf(" ", first.from - 90) + 1) : 0;
  let to = text.indexOf(" ", from + limit);
  if (to < 0) to = text.length;
  const p = el("p", {}, from ? "… " : "", highlighted(text.slice(from, to), strings), to < text.length ? " …" : "");
  p.append(el("button", {class: "more", type: "button", onclick: () => p.replaceChildren(...highlighted(text, strings))}, "whole text"));
  return p;
}

function meter(name, share, kind) {
  if (!finite(share)) return null;
  return [el("div", {class: "row"}, el("span", {}, name), el("span", {}, (100 * share).toFixed(share < 0.0995 ? 1 : 0) + " %")),
    el("div", {class: "bar " + kind}, el("i", {style: `width:${Math.max(0, Math.min(1, share)) * 100}%`}))];
}

function documentRow(doc, rank, strings) {
  return el("div", {class: "doc"}, el("div", {class: "rank"}, String(rank + 1)),
    picture(doc.image, "picture of the document") || el("div", {class: "nopic"}, "text"),
    el("div", {}, el("h4", {}, doc.title || doc.id, doc.is_gold && el("span", {class: "badge gold"}, "★ gold")),
      documentText(doc.text, strings)),
    el("div", {class: "meter"}, meter("attention", doc.attention, "a"), meter("probability", doc.probability, "p"),
      finite(doc.score) ? el("div", {class: "row"}, el("span", {}, "score"), el("span", {}, doc.score.toFixed(3))) : null,
      finite(doc.utility) ? el("div", {class: "row"}, el("span", {}, "utility"), el("span", {}, doc.utility.toFixed(2) + " nats")) : null));
}

function sampleBadge(sample) {
  if (sample.em) return el("span", {class: "badge ok"}, "✓ exact");
  if (sample.f1 > 0) return el("span", {class: "badge part"}, `≈ F1 ${(100 * sample.f1).toFixed(0)} %`);
  return el("span", {class: "badge no"}, "✕ wrong");
}

function sampleCard(sample) {
  const strings = wanted(sample), others = Object.entries(sample.answers || {});
  const names = {gold: "gold document", wrong: "wrong document", closed_book: "closed book"};
  return el("article", {class: "card sample"},
    el("div", {class: "ask"}, picture(sample.query_image, "query picture"),
      el("p", {class: "q"}, sample.question),
      el("p", {class: "said"}, el("b", {}, sample.answer || "(no answer)"), " ", sampleBadge(sample)),
      el("p", {class: "small soft"}, "accepted: ", sample.references.join(" · ") || "–"),
      others.length ? el("div", {class: "others"}, others.map(([key, value]) =>
        el("div", {}, el("span", {}, names[key] || key), el("b", {}, value || "–")))) : null),
    el("div", {class: "docs"}, el("p", {class: "small soft"}, sample.documents.length
      ? "What the retriever found, and how much of the reader’s attention each document got" : "No document was retrieved."),
      sample.documents.map((doc, rank) => documentRow(doc, rank, strings))));
}

function drawSamples() {
  const samples = run.samples;
  if (!samples.length) return;
  const evidence = (s) => s.documents.some((d) => findAll(d.text, s.references.map((value) => ({value}))).length > 0);
  const filters = [["All", () => true], ["Right", (s) => s.em], ["Wrong", (s) => !s.em],
    ["Right passage, wrong answer", (s) => !s.em && s.documents.some((d) => d.is_gold)],
    ["No evidence retrieved", (s) => !evidence(s)]];
  const list = el("div", {}), page = 6;
  const show = (index, count) => {
    const chosen = samples.filter(filters[index][1]);
    list.replaceChildren(...chosen.slice(0, count).map(sampleCard));
    if (!chosen.length) list.append(el("p", {class: "empty"}, "No sample falls into this group."));
    if (chosen.length > count) list.append(el("button", {class: "more-cards", type: "button",
      onclick: () => show(index, count + 3 * page)}, `Show more (${chosen.length - count} left)`));
    buttons.forEach((b, i) => b.setAttribute("aria-pressed", String(i === index)));
  };
  const buttons = filters.map(([name, test], index) => el("button", {type: "button", onclick: () => show(index, page)},
    name, el("span", {}, String(samples.filter(test).length))));
  section("samples", "Samples", "Questions, answers and the documents behind them",
    "Yellow marks an accepted answer in a document, blue the model’s own answer where it is another one.",
    el("div", {class: "filters", role: "group", "aria-label": "Filter samples"}, buttons), list);
  show(0, page);
}

function drawEdits() {
  if (!run.edits.length) return;
  section("edits", "Edits", "Edit the index, not the model",
    "One fact was changed in one document and the document indexed again. No weight of the model moved.",
    el("div", {class: "edits"}, run.edits.map((edit) => el("article", {class: "card edit"},
      picture(edit.query_image, "query picture") || el("div", {}),
      el("div", {}, el("p", {class: "q"}, edit.question),
        el("p", {class: "step"}, el("span", {class: "soft"}, "document"), el("del", {}, edit.fact_before), " → ", el("ins", {}, edit.fact_after)),
        el("p", {class: "step"}, el("span", {class: "soft"}, "answer"), edit.answer_before, " → ", el("b", {}, edit.answer_after), " ",
          el("span", {class: "badge " + (edit.followed ? "ok" : "no")}, edit.followed ? "✓ follows" : "✕ does not follow")))))));
}

// ---- data, configuration, credits ----
function shown(value) {
  if (value === undefined) return "–";
  return typeof value === "string" ? value : JSON.stringify(value);
}

function table(heads, rows, right) {
  const cls = (i) => (right.includes(i) ? "r" : null);
  return el("div", {class: "scroll"}, el("table", {class: "plain"},
    el("thead", {}, el("tr", {}, heads.map((h, i) => el("th", {class: cls(i)}, h)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell, i) => el("td", {class: cls(i)}, cell)))))));
}

function histogram(name, histo) {
  const top = Math.max(1, ...histo.counts);
  return el("div", {class: "card"}, el("h3", {}, name),
    el("div", {class: "histo", role: "img", "aria-label": name}, histo.counts.map((c, i) =>
      el("i", {style: `height:${100 * c / top}%`, title: `${short(histo.edges[i])} to ${short(histo.edges[i + 1])}: ${short(c)}`}))),
    el("div", {class: "histo-axis"}, el("span", {}, short(histo.edges[0])), el("span", {}, short(histo.edges[histo.edges.length - 1]))));
}

function drawHealth() {
  const health = run.data_health;
  if (!health) return;
  const counts = Object.entries(health.counts || {}), skipped = health.skipped || [];
  const cards = [];
  if (counts.length) cards.push(el("div", {class: "card"}, el("h3", {}, "What was read"),
    table(["what", "count"], counts.map(([k, v]) => [k, finite(v) ? short(v) : shown(v)]), [1])));
  cards.push(el("div", {class: "card"}, el("h3", {}, "Records left out"), skipped.length
    ? table(["why", "count", "first one"], skipped.map((s) => [s.reason, short(s.count), el("span", {class: "mono"}, s.example || "–")]), [1])
    : el("p", {class: "small soft"}, "None: every record was readable and used.")));
  for (const [name, histo] of Object.entries(health.histograms || {})) {
    if (Array.isArray(histo.counts) && Array.isArray(histo.edges)) cards.push(histogram(name, histo));
  }
  section("data", "Data", "Data health", "What the loader read, and what it had to leave out.", el("div", {class: "grid2"}, cards));
}

function drawConfig() {
  const cards = [];
  if (run.config_diff) {
    cards.push(el("div", {class: "card"}, el("h3", {}, "Settings that differ from the defaults"), run.config_diff.length
      ? table(["setting", "this run", "default"], run.config_diff.map((d) =>
        [el("span", {class: "mono"}, d.key), el("b", {class: "mono"}, shown(d.value)), el("span", {class: "mono soft"}, shown(d.default))]), [])
      : el("p", {class: "small soft"}, "None."),
    el("details", {}, el("summary", {}, "All settings"), el("pre", {}, JSON.stringify(run.config, null, 2)))));
  } else if (run.config) {
    cards.push(el("div", {class: "card"}, el("h3", {}, "Settings"), el("pre", {}, JSON.stringify(run.config, null, 2))));
  }
  const machine = Object.entries(run.environment || {});
  if (machine.length) cards.push(el("div", {class: "card"}, el("h3", {}, "Where it ran"),
    table(["", ""], machine.map(([k, v]) => [k, shown(v)]), [])));
  if (cards.length) section("run", "Run", "Settings and machine", "", el("div", {class: "grid2"}, cards));
}

function drawCredits() {
  if (run.credits) section("credits", "Credits", "Credits", "Where pictures and texts come from.", el("div", {class: "card"}, el("pre", {}, run.credits)));
}

function drawAll() {
  drawHeader();
  drawResults();
  drawEdits();
  drawRetrieval();
  drawSamples();
  drawCurves();
  drawHealth();
  drawConfig();
  drawCredits();
  if (!sections.length) main.append(el("p", {class: "empty"}, "This run has not logged anything yet."));
  document.getElementById("toc").append(...sections.map(([id, title]) => el("a", {href: "#" + id}, title)));
  document.getElementById("footer").append("Written by Contexture. One file, no network: safe to mail and to archive.");
  redraw();
  let pending = 0;
  addEventListener("resize", () => { cancelAnimationFrame(pending); pending = requestAnimationFrame(redraw); });
  document.documentElement.setAttribute("data-charts", String(charts.length));
}

drawAll();
