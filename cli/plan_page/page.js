'use strict';
// Draws a plan. All text goes in as text nodes, never as markup.
const data = JSON.parse(document.getElementById('plan-data').textContent);
const best = data.plans[0];

function make(tag, attributes, ...children) {
  const svg = ['svg', 'rect', 'path', 'text', 'tspan', 'title', 'line'].includes(tag);
  const node = svg ? document.createElementNS('http://www.w3.org/2000/svg', tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  for (const child of children) node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  return node;
}
function inBytes(n) {
  const units = ['B', 'kB', 'MB', 'GB', 'TB', 'PB'];
  let u = 0;
  while (n >= 999.5 && u < 5) { n /= 1000; ++u; }
  return (n < 10 && u > 0 ? n.toFixed(1) : n.toFixed(0)) + ' ' + units[u];
}
function inWords(n) {
  const names = ['', ' thousand', ' million', ' billion', ' trillion'];
  let i = 0;
  while (n >= 999.5 && i < 4) { n /= 1000; ++i; }
  return n.toPrecision(3) + names[i];
}
const seconds = s => s >= 1 ? s.toPrecision(3) + ' s' : (1000 * s).toPrecision(3) + ' ms';
const percent = share => (100 * share).toFixed(1) + ' %';
function section(title, lead, ...children) {
  const out = make('section', {}, make('h2', {}, title));
  if (lead) out.append(make('p', { class: 'lead' }, lead));
  const card = make('div', { class: 'card' });
  card.append(...children);
  out.append(card);
  return out;
}

// "doc.layer.0 .. 19" for runs of numbered neighbours.
function runs(blocks) {
  const out = [];
  for (const block of blocks) {
    const parts = /^(.*)\.(\d+)$/.exec(block), last = out[out.length - 1];
    if (parts && last && last.stem === parts[1] && last.to + 1 === +parts[2]) last.to = +parts[2];
    else if (parts) out.push({ stem: parts[1], from: +parts[2], to: +parts[2] });
    else out.push({ name: block });
  }
  return out.map(r => r.name || r.stem + '.' + r.from + (r.to > r.from ? ' .. ' + r.to : ''));
}

function tiles() {
  const tile = (label, value, note) => make('div', { class: 'tile' }, make('div', { class: 'label' }, label), make('div', { class: 'value' }, value), make('div', { class: 'note' }, note || ''));
  const cost = best.usd_per_1k_samples;
  return make('div', { class: 'tiles' },
    tile('dp x pp x tp', best.dp + ' x ' + best.pp + ' x ' + best.tp, best.pp > 1 ? best.schedule : 'no pipeline'),
    tile('step', seconds(best.step_s), best.samples_per_s.toFixed(1) + ' samples/s'),
    tile('memory', inBytes(1e9 * best.memory_gb), 'of ' + data.usable_gb.toFixed(1) + ' usable'),
    tile('idle', percent(best.idle), best.microbatches + ' microbatches, ZeRO ' + best.zero),
    tile('MFU', percent(best.mfu), percent(best.mfu_logical) + ' logical'),
    tile('$ per 1,000', cost === null ? '-' : cost.toPrecision(3), cost === null ? 'no price given' : 'samples'));
}

function table() {
  const columns = [['dp', p => p.dp], ['pp', p => p.pp], ['tp', p => p.tp], ['schedule', p => p.pp > 1 ? p.schedule + (p.chunks > 1 ? ' x' + p.chunks : '') : '-'],
    ['order', p => p.order], ['microbatches', p => p.microbatches],
    ['token slices', p => p.token_slices === 1 ? '-' : p.token_slices || 'planned'], ['assembly', p => p.assembly], ['ZeRO', p => p.zero], ['recompute', p => p.recompute.join(', ') || '-'], ['step', p => seconds(p.step_s)],
    ['memory', p => inBytes(1e9 * p.memory_gb)], ['idle', p => percent(p.idle)], ['MFU', p => percent(p.mfu)],
    ['across nodes', p => inBytes(p.bytes_per_step.across.pipeline + p.bytes_per_step.across.tensor + p.bytes_per_step.across.data)],
    ['$/1,000', p => p.usd_per_1k_samples === null ? '-' : p.usd_per_1k_samples.toPrecision(3)]];
  const out = make('table', { class: 'plans' }, make('tr', {}, ...columns.map(c => make('th', {}, c[0]))));
  data.plans.forEach((plan, i) => out.append(make('tr', i === 0 ? { class: 'best' } : {}, ...columns.map(c => make('td', {}, c[1](plan))))));
  return make('div', { class: 'scroll' }, out);
}

// Boxes in a row; wires above them, shared parameters below.
function stages() {
  const width = 214, gap = 26, lines = best.stages.map(s => runs(s.blocks)), most = Math.max(...lines.map(l => l.length));
  const wires = [];
  best.stages.forEach((stage, to) => stage.wires_in.forEach(wire => wires.push({ ...wire, to })));
  // A cubic curve rises to three quarters of its control points' height.
  const rise = wire => 30 + 14 * Math.min(wire.to - wire.from, 12), apex = wire => .75 * rise(wire);
  const top = 24 + Math.max(0, ...wires.map(apex)), box = 84 + 15 * most;
  const under = best.shared.length ? 60 + 14 * Math.min(best.shared.length, 8) : 14;
  const total = best.stages.length * (width + gap) + gap, slowest = Math.max(...best.stages.map(s => s.forward_s + s.input_grad_s + s.weight_grad_s));
  const svg = make('svg', { class: 'drawing', width: total, height: top + box + under, role: 'img', 'aria-label': 'stages and wires' });
  const left = s => gap + s * (width + gap), biggest = Math.max(1, ...wires.map(w => w.forward_bytes));
  const between = new Map();  // what goes from one stage to another, for one label
  wires.forEach((wire, i) => {
    const x1 = left(wire.from) + width * (.55 + .35 * (i % 4) / 4), x2 = left(wire.to) + width * (.1 + .35 * (i % 4) / 4), high = top - rise(wire);
    const path = make('path', { class: 'wire' + (wire.context ? ' context' : '') + (wire.across_nodes ? ' across' : ''), d: `M${x1},${top} C${x1},${high} ${x2},${high} ${x2},${top}`,
      'stroke-width': 1 + 4 * Math.sqrt(wire.forward_bytes / biggest) });
    path.append(make('title', {}, `${wire.name}: ${inBytes(wire.forward_bytes)} forward, ${inBytes(wire.backward_bytes)} back, a microbatch` + (wire.context ? '; states of documents' : '') + (wire.across_nodes ? '; across nodes' : '')));
    svg.append(path);
    const ends = wire.from + ' ' + wire.to;
    if (!between.has(ends)) between.set(ends, { x: (left(wire.from) + left(wire.to) + width) / 2 - width * .1, y: top - apex(wire) - 6, plain: 0, context: 0 });
    between.get(ends)[wire.context ? 'context' : 'plain'] += wire.forward_bytes;
  });
  for (const { x, y, plain, context } of between.values()) {
    const label = make('text', { x, y, 'text-anchor': 'middle' });
    if (plain > 0) label.append(make('tspan', { class: 'plain' }, inBytes(plain)));
    if (plain > 0 && context > 0) label.append(' + ');
    if (context > 0) label.append(make('tspan', { class: 'context' }, inBytes(context)));
    svg.append(label);
  }
  best.stages.forEach((stage, s) => {
    const x = left(s), bar = width - 20, time = stage.forward_s + stage.input_grad_s + stage.weight_grad_s;
    svg.append(make('rect', { class: 'stage', x, y: top, width, height: box, rx: 8 }));
    const line = (y, text, name) => svg.append(make('text', { x: x + 10, y: top + y, class: name || '' }, text));
    line(19, 'stage ' + s + ', rank ' + stage.rank + ', node ' + stage.node, 'title');
    line(35, seconds(stage.forward_s) + ' forward, ' + seconds(stage.input_grad_s + stage.weight_grad_s) + ' back', 'dim');
    svg.append(make('rect', { class: 'room', x: x + 10, y: top + 40, width: bar, height: 5 }), make('rect', { class: 'busy', x: x + 10, y: top + 40, width: bar * time / slowest, height: 5 }));
    line(60, inBytes(1e9 * stage.memory_gb) + ', ' + inWords(stage.parameters) + ' parameters', 'dim');
    svg.append(make('rect', { class: 'room', x: x + 10, y: top + 65, width: bar, height: 5 }), make('rect', { class: 'used', x: x + 10, y: top + 65, width: bar * Math.min(1, stage.memory_gb / data.usable_gb), height: 5 }));
    lines[s].forEach((text, i) => line(86 + 15 * i, text));
  });
  best.shared.forEach((group, i) => {
    const y = top + box, low = y + 30 + 14 * Math.min(i, 8), x1 = left(group.stages[0]) + width / 2 + 5 * i;
    group.stages.slice(1).forEach(to => {
      const x2 = left(to) + width / 2 + 5 * i;
      const path = make('path', { class: 'shared', d: `M${x1},${y} C${x1},${low} ${x2},${low} ${x2},${y}` });
      path.append(make('title', {}, `${group.parameters} parameter${group.parameters > 1 ? 's' : ''} (${inBytes(group.bytes)}) in stages ${group.stages.join(', ')}: gradients are summed`));
      svg.append(path);
    });
    if (i < 8) svg.append(make('text', { class: 'dim', x: x1, y: low + 12 }, `${group.parameters} shared parameter${group.parameters > 1 ? 's' : ''}, ${inBytes(group.bytes)}`));
  });
  const key = (name, text) => make('span', {}, make('i', { class: 'key ' + name }), text);
  return [make('div', { class: 'legend' }, key('', 'wire'), key('context', 'states of retrieved documents'), key('across', 'across nodes'), key('shared', 'shared parameters')), make('div', { class: 'scroll' }, svg)];
}

// One row a rank; `end`: microseconds that the picture's width stands for.
function lanes(name, events, end, width) {
  const ranks = 1 + Math.max(...events.map(e => e.tid)), row = ranks > 16 ? 14 : 22, scale = (width - 70) / end;
  const svg = make('svg', { class: 'drawing', width, height: ranks * row + 26, role: 'img', 'aria-label': name + ' timeline' });
  for (let rank = 0; rank < ranks; ++rank) {
    svg.append(make('rect', { class: 'lane', x: 60, y: rank * row + 2, width: width - 70, height: row - 4 }), make('text', { x: 4, y: rank * row + row * .65, class: 'dim' }, 'rank ' + rank));
  }
  for (const event of events) {
    const work = /^\d+([FBIW])/.exec(event.name), waited = event.args ? event.args.waited_us : 0;  // for its inputs: before the work
    const box = make('rect', { class: work ? work[1] : 'B', x: 60 + (event.ts + waited) * scale, y: event.tid * row + 2, width: Math.max(.5, (event.dur - waited) * scale - .4), height: row - 4 });
    box.append(make('title', {}, `${event.name}: ${seconds(event.dur / 1e6)} from ${seconds(event.ts / 1e6)}`));
    svg.append(box);
  }
  for (let i = 0; i <= 5; ++i) svg.append(make('text', { x: 60 + (width - 100) * i / 5, y: ranks * row + 18, class: 'dim' }, seconds(end * i / 5 / 1e6)));
  const last = Math.max(...events.map(e => e.ts + e.dur)), busy = events.reduce((sum, e) => sum + e.dur - (e.args ? e.args.waited_us : 0), 0);
  return [make('p', { class: 'soft small lane-title' }, `${name}: ${seconds(last / 1e6)}, ${percent(1 - busy / (last * ranks))} idle`), svg];
}

function timeline() {
  const simulated = data.timeline.filter(e => e.ph === 'X'), measured = data.measured || [];
  const end = Math.max(...simulated.concat(measured).map(e => e.ts + e.dur)), ranks = 1 + Math.max(...simulated.map(e => e.tid));
  const width = Math.max(1100, Math.min(8000, simulated.length / ranks * 16));
  const both = make('div', { class: 'scroll' }, ...lanes('Simulated', simulated, end, width), ...(measured.length ? lanes('Measured', measured, end, width) : []));
  const key = (name, text) => make('span', {}, make('svg', { width: 14, height: 10 }, make('rect', { class: name, width: 14, height: 10 })), text);
  return [make('div', { class: 'legend' }, key('F', 'forward'), key('B', 'backward'), key('I', 'gradient of the inputs'), key('W', 'gradient of the weights')), both];
}

const gpus = data.cluster.nodes * data.cluster.gpus_per_node;
document.getElementById('header').append(
  make('div', { class: 'brand' }, make('b', {}, 'Contexture'), ' plan for ' + data.cluster.name + ': ' + gpus + ' GPUs, ' + inWords(data.model.parameters) + ' parameters'),
  make('p', { class: 'verdict' }, data.advice[0] || ''), tiles());
const main = document.getElementById('main');
main.append(section('Plans', data.layouts_possible + ' layouts are possible; ' + data.layouts_priced + ' had to be priced.', table()),
  section('Stages', 'Each box is a stage: its blocks, its time for a microbatch, the memory of its rank.', ...stages()),
  section('One step', data.measured ? 'The simulated schedule, and below it a step that ran, on one scale; one row a pipeline rank.' : 'The simulated schedule, one row a pipeline rank.', ...timeline()),
  section('Advice', '', make('ul', { class: 'advice' }, ...data.advice.map(a => make('li', {}, a)))),
  section('To run it', '', make('p', { class: 'command mono' }, best.command)));
document.getElementById('footer').append(make('p', { class: 'soft small' }, 'Predicted, not measured. docs/planning.md says how.'));
