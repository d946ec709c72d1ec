"use strict";
// Small line charts in SVG: several series over steps or seconds, hover, logarithmic axis,
// smoothing, vertical marks. Text reaches the page through textContent and attributes only.
const SVG = "http://www.w3.org/2000/svg";

function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "style") node.style.cssText = value;
    else node.setAttribute(key, value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}

function svg(tag, attributes, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

const finite = (v) => typeof v === "number" && Number.isFinite(v);

function short(v) {
  if (!finite(v)) return "–";
  const size = Math.abs(v);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return v.toExponential(2).replace("e+", "e").replace(/\.?0+e/, "e");
  if (size >= 1000) return Math.round(v).toLocaleString("en-US");
  return String(Number(v.toPrecision(4)));
}

function clock(seconds) {
  if (!finite(seconds)) return "–";
  const s = Math.round(seconds), h = Math.floor(s / 3600), m = Math.floor(s / 60) % 60;
  if (h) return `${h} h ${m} min`;
  return m ? `${m} min ${s % 60 ? (s % 60) + " s" : ""}`.trim() : `${s} s`;
}

// Round numbers that cover lo..hi.
function ticks(lo, hi, count) {
  const raw = (hi - lo) / Math.max(1, count), power = Math.pow(10, Math.floor(Math.log10(raw)));
  const unit = [1, 2, 5, 10].find((u) => u * power >= raw) * power, out = [];
  for (let v = Math.ceil(lo / unit) * unit; v <= hi + unit * 1e-9; v += unit) out.push(Math.abs(v) < unit * 1e-9 ? 0 : v);
  return out;
}

// Round numbers of seconds, minutes, hours or days.
function timeTicks(lo, hi, count) {
  const raw = (hi - lo) / Math.max(1, count);
  const unit = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400].find((u) => u >= raw);
  if (!unit) return ticks(lo, hi, count);
  const out = [];
  for (let v = Math.ceil(lo / unit) * unit; v <= hi; v += unit) out.push(v);
  return out;
}

function logTicks(lo, hi) {
  const out = [];
  for (let p = Math.floor(Math.log10(lo)); p <= Math.ceil(Math.log10(hi)); ++p) {
    for (const m of [1, 2, 5]) {
      const v = m * Math.pow(10, p);
      if (v >= lo * 0.999 && v <= hi * 1.001) out.push(v);
    }
  }
  return out.length > 7 ? out.filter((v) => Math.abs(Math.log10(v) % 1) < 1e-9) : out;
}

// Exponential mean with the bias of its start removed; gaps stay gaps.
function smooth(values, weight) {
  let mean = 0, mass = 0;
  return values.map((v) => {
    if (!finite(v)) return null;
    mean = weight * mean + (1 - weight) * v;
    mass = weight * mass + (1 - weight);
    return mean / mass;
  });
}

function quantileOf(values, q) {
  const sorted = values.slice().sort((a, b) => a - b);
  return sorted.length ? sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))] : 0;
}

// spec: title, note, series [{name, x: {step, time}, y, color, dash, raw}], marks [{step, time, label}],
// range [lo, hi] or null, percent, canLog, smoothable. Shared state: {axis, weight}.
class LineChart {
  constructor(spec, state) {
    this.spec = spec;
    this.state = state;
    this.log = false;
    this.logButton = spec.canLog && el("button", {class: "log", type: "button", "aria-pressed": "false",
      title: "Logarithmic vertical axis", onclick: () => this.toggleLog()}, "log");
    this.canvas = svg("svg", {role: "img", "aria-label": spec.title});
    this.legend = el("div", {class: "legend"});
    this.tip = el("div", {class: "tip", hidden: ""});
    this.node = el("figure", {class: "card chart"},
      el("header", {}, el("h3", {}, spec.title), this.logButton), el("p", {class: "small soft"}, spec.note || ""),
      this.canvas, this.legend, this.tip);
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => this.leave());
    for (const s of spec.series) this.legend.append(this.key(s));
    if (spec.marks && spec.marks.length) {
      const key = svg("svg", {viewBox: "0 0 26 10"});
      key.append(svg("line", {x1: 13, x2: 13, y1: 0, y2: 10, class: "mark"}));
      this.legend.append(el("span", {}, key, spec.markName));
    }
  }

  key(series) {
    const key = svg("svg", {viewBox: "0 0 26 10"});
    key.append(svg("path", {d: "M1 5H25", stroke: series.color, "stroke-width": 2.4,
      "stroke-dasharray": series.dash || "none"}));
    return el("span", {}, key, series.name);
  }

  toggleLog() {
    this.log = !this.log;
    this.logButton.setAttribute("aria-pressed", String(this.log));
    this.draw();
  }

  // Lines to draw: {series, x, y, faint}.
  lines() {
    const out = [];
    for (const s of this.spec.series) {
      const x = s.x[this.state.axis] || s.x.step;
      const smoothed = this.spec.smoothable && this.state.weight > 0 && s.y.length > 40;
      if (smoothed) out.push({series: s, x, y: s.y, faint: true});
      out.push({series: s, x, y: smoothed ? smooth(s.y, this.state.weight) : s.y, faint: false});
    }
    return out;
  }

  bounds(lines) {
    let lo = Infinity, hi = -Infinity, x0 = Infinity, x1 = -Infinity;
    for (const line of lines) {
      for (const x of line.x) if (finite(x)) { x0 = Math.min(x0, x); x1 = Math.max(x1, x); }
      const shown = line.y.filter((v) => finite(v) && (!this.log || v > 0));
      if (!shown.length) continue;
      // A lone spike must not flatten the curve: raw values count up to their 99.5 % quantile.
      const top = line.faint ? quantileOf(shown, 0.995) : shown.reduce((a, b) => Math.max(a, b));
      lo = Math.min(lo, line.faint ? quantileOf(shown, 0.005) : shown.reduce((a, b) => Math.min(a, b)));
      hi = Math.max(hi, top);
    }
    if (!finite(lo)) { lo = this.log ? 0.1 : 0; hi = 1; }
    if (!finite(x0)) { x0 = 0; x1 = 1; }
    if (x0 === x1) x1 = x0 + 1;
    if (this.spec.range && !this.log) [lo, hi] = this.spec.range;
    else if (this.log) { if (hi / lo < 1.5) { lo /= 1.3; hi *= 1.3; } }
    else {
      const pad = (hi - lo || Math.abs(hi) || 1) * 0.06;
      lo = lo >= 0 && lo < 0.35 * hi ? 0 : lo - pad;
      hi += pad;
    }
    return {lo, hi, x0, x1};
  }

  draw() {
    const width = Math.max(240, this.canvas.clientWidth || 520), height = 236;
    const box = {left: 50, right: width - 14, top: 16, bottom: height - 26};
    const lines = this.lines(), {lo, hi, x0, x1} = this.bounds(lines);
    const scale = this.log ? Math.log10 : (v) => v;
    const px = (x) => box.left + (x - x0) / (x1 - x0) * (box.right - box.left);
    const py = (y) => Math.min(box.bottom, Math.max(box.top - 10,
      box.bottom - (scale(y) - scale(lo)) / (scale(hi) - scale(lo)) * (box.bottom - box.top)));
    this.map = {px, py, lines, box, height};
    this.canvas.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.canvas.replaceChildren();
    for (const v of this.log ? logTicks(lo, hi) : ticks(lo, hi, 4)) {
      this.canvas.append(svg("line", {class: "grid", x1: box.left, x2: box.right, y1: py(v), y2: py(v)}),
        svg("text", {class: "axis", x: box.left - 8, y: py(v) + 4, "text-anchor": "end"},
          short(v) + (this.spec.percent ? " %" : "")));
    }
    const time = this.state.axis === "time";
    for (const v of (time ? timeTicks : ticks)(x0, x1, Math.min(6, width / 90))) {
      this.canvas.append(svg("text", {class: "axis", x: px(v), y: height - 8, "text-anchor": "middle"},
        time ? clock(v) : short(v)));
    }
    this.drawMarks(px, box, x0, x1);
    for (const line of lines) this.drawLine(line, px, py);
    this.overlay = svg("g");
    this.canvas.append(this.overlay);
    this.tip.hidden = true;
  }

  drawMarks(px, box, x0, x1) {
    for (const mark of this.spec.marks || []) {
      const x = finite(mark[this.state.axis]) ? mark[this.state.axis] : null;
      if (x === null || x < x0 || x > x1) continue;
      this.canvas.append(svg("line", {class: "mark", x1: px(x), x2: px(x), y1: box.top - 4, y2: box.bottom}));
    }
  }

  drawLine(line, px, py) {
    let path = "", open = false;
    const missing = [];
    line.y.forEach((v, i) => {
      const shown = finite(v) && (!this.log || v > 0) && finite(line.x[i]);
      if (!shown) {
        open = false;
        if (v === null && !line.faint && line.series.markMissing) missing.push(line.x[i]);
        return;
      }
      path += (open ? "L" : "M") + px(line.x[i]).toFixed(1) + " " + py(v).toFixed(1);
      open = true;
    });
    this.canvas.append(svg("path", {d: path || "M0 0", class: "series", stroke: line.series.color,
      "stroke-width": line.faint ? 0.8 : 2.1, "stroke-opacity": line.faint ? 0.2 : 1,
      "stroke-dasharray": line.faint ? "none" : line.series.dash || "none"}));
    if (line.y.length <= 40 && !line.faint) {
      line.y.forEach((v, i) => {
        if (finite(v) && (!this.log || v > 0)) this.canvas.append(
          svg("circle", {cx: px(line.x[i]), cy: py(v), r: 2.6, fill: line.series.color}));
      });
    }
    for (const x of missing) {
      this.canvas.append(svg("text", {class: "bad", x: px(x) - 4, y: 12, "font-size": 12}, "✕"));
    }
  }

  hover(event) {
    const {px, py, lines, box} = this.map, area = this.canvas.getBoundingClientRect();
    const at = event.clientX - area.left;
    let best = null;
    for (const line of lines) {
      if (line.faint) continue;
      line.x.forEach((x, i) => {
        const gap = Math.abs(px(x) - at);
        if (finite(line.y[i]) && (best === null || gap < best.gap)) best = {gap, x, i};
      });
    }
    if (best === null) return;
    this.overlay.replaceChildren(svg("line", {class: "hair", x1: px(best.x), x2: px(best.x), y1: box.top, y2: box.bottom}));
    const rows = [el("div", {}, el("b", {}, this.state.axis === "time" ? clock(best.x) : "step " + short(best.x)))];
    for (const line of lines) {
      const i = this.nearest(line, px, px(best.x));
      if (i < 0) continue;
      if (!line.faint) this.overlay.append(svg("circle", {cx: px(line.x[i]), cy: py(line.y[i]), r: 4,
        fill: line.series.color, stroke: "#fff", "stroke-width": 1.5}));
      rows.push(el("div", {}, el("span", {class: "k"}, line.faint ? line.series.name + " (raw)" : line.series.name),
        el("b", {}, short(line.y[i]) + (this.spec.percent ? " %" : ""))));
    }
    this.tip.replaceChildren(...rows);
    this.tip.hidden = false;
    const frame = this.node.getBoundingClientRect(), left = area.left - frame.left + px(best.x);
    const flip = px(best.x) > area.width - 190;
    this.tip.style.left = flip ? "auto" : `${left + 14}px`;
    this.tip.style.right = flip ? `${frame.width - left + 14}px` : "auto";
    this.tip.style.top = `${area.top - frame.top + 14}px`;
  }

  // The known point of a line that is nearest to a place, if it is within a few pixels.
  nearest(line, px, place) {
    let found = -1, gap = 6;
    line.x.forEach((x, i) => {
      const away = Math.abs(px(x) - place);
      if (finite(line.y[i]) && away < gap) { gap = away; found = i; }
    });
    return found;
  }

  leave() {
    this.tip.hidden = true;
    if (this.overlay) this.overlay.replaceChildren();
  }
}
