'use strict';
const SVG = 'http://www.w3.org/2000/svg';
const SIGNS = {
  running: '▶', finished: '✓', failed: '✗', queued: '…', stopped: '■', unfinished: '~',
  online: '●', offline: '○', unknown: '?', green: '●', yellow: '◐', red: '✗',
};
const main = document.getElementById('main');
const parts = new Map();

// ---- elements

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined) node.setAttribute(key, value);
  }
  for (const child of children.flat(3)) {
    if (known(child)) node.append(child);  // a string becomes a text node, whatever it holds
  }
  return node;
}
const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// Replace a part of the page, only if what it shows has changed: a selection and the focus stay.
function part(id, shows, make) {
  const text = JSON.stringify(shows);
  if (!parts.has(id)) {
    parts.set(id, {node: h('div', {id}), text: undefined});
    main.append(parts.get(id).node);
  }
  const box = parts.get(id);
  if (box.text === text) return;
  box.text = text;
  const focus = box.node.contains(document.activeElement) ? document.activeElement : null;
  const key = focus && ['id', 'href', 'aria-label'].find(name => focus.hasAttribute(name));
  const same = key && `[${key}="${CSS.escape(focus.getAttribute(key))}"]`;
  box.node.replaceChildren(...[make()].flat(3).filter(known));
  if (same) box.node.querySelector(same)?.focus({preventScroll: true});
}

function state(word) {
  const sign = SIGNS[word] ? h('span', {'aria-hidden': 'true'}, SIGNS[word] + ' ') : '';
  return h('span', {class: 'state s-' + word.replace(/[^a-z]/g, '')}, sign, word);
}

function note(words, kind) {
  return known(words) ? h('span', {class: 'note ' + (kind || '')}, words) : '';
}

function problems(lines) {
  const list = h('ul', {}, lines.map(line => h('li', {}, line)));
  part('problems', lines, () => lines.length ? h('div', {class: 'problems', role: 'alert'}, list) : '');
}

// Columns are [head, cell(row), numeric]; the first cell of a row names it. The style sheet makes cards of
// the rows on a phone if told so; the roles keep them a table for a screen reader.
function table(caption, columns, rows, cards) {
  const heads = columns.map(([head, , numeric]) =>
    h('th', {scope: 'col', role: 'columnheader', class: numeric ? 'n' : null}, head));
  const cell = (row, [head, make, numeric], i) => {
    const inside = [make(row)].flat();
    const kind = (numeric ? 'n' : '') + (inside.some(known) ? '' : ' empty');
    if (i === 0) return h('th', {scope: 'row', role: 'rowheader', class: kind}, inside);
    return h('td', {role: 'cell', 'data-label': head, class: kind}, inside);
  };
  const made = h('table', {role: 'table', class: cards ? 'cards' : null},
    h('caption', {}, caption),
    h('thead', {role: 'rowgroup'}, h('tr', {role: 'row'}, heads)),
    h('tbody', {role: 'rowgroup'},
      rows.map(row => h('tr', {role: 'row'}, columns.map((column, i) => cell(row, column, i))))));
  if (cards) return made;
  return h('div', {class: 'wide', tabindex: '0', role: 'region', 'aria-label': caption}, made);
}

function facts(pairs) {
  const some = pairs.filter(([, value]) => known(value));
  const fact = ([name, value]) => h('div', {}, h('dt', {}, name), h('dd', {}, value));
  return h('dl', {class: 'facts'}, some.map(fact));
}

// ---- words for numbers

function known(x) {
  return x !== null && x !== undefined && x !== '';
}
function count(x) {
  return known(x) ? x.toLocaleString('en') : '';
}
function short(x) {
  if (!known(x)) return '';
  return x === 0 || (Math.abs(x) >= 0.01 && Math.abs(x) < 1000) ? x.toFixed(3) : x.toPrecision(3);
}
function plain(x) {
  return String(Number(x.toPrecision(6)));
}
function bytes(x) {
  if (!known(x)) return '';
  const units = [[1e12, 'TB'], [1e9, 'GB'], [1e6, 'MB'], [1e3, 'kB']];
  const [size, unit] = units.find(([size]) => x >= size) || [1, 'B'];
  return `${(x / size).toFixed(size === 1 ? 0 : 1)} ${unit}`;
}
function wholeBytes(x) {
  return bytes(x).replace('.0 ', ' ');
}
const two = n => String(n).padStart(2, '0');
function span(x) {
  if (!known(x)) return '';
  if (x < 0.995) return `${Math.round(x * 1000)} ms`;
  if (x < 60) return `${x.toFixed(x < 10 ? 2 : 1)} s`;
  const t = Math.round(x);
  return `${Math.floor(t / 3600)}:${two(Math.floor(t / 60) % 60)}:${two(t % 60)}`;
}
function spanOnAxis(x, high) {
  return high < 0.5 ? `${plain(x * 1000)} ms` : `${plain(x)} s`;
}
// A time is in seconds since 1970, or a text.
function moment(at, kind) {
  const date = typeof at === 'number' ? new Date(at * 1000) : new Date(at);
  if (!known(at) || isNaN(date)) return known(at) ? String(at) : '';
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  const words = `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  const iso = date.toISOString();
  return h('time', {datetime: iso, title: words, class: kind, 'data-at': date.getTime() / 1000}, words);
}
const age = at => moment(at, 'age');
// Ages go by the server's clock, as the times do.
function ages(now) {
  for (const time of document.querySelectorAll('time.age')) {
    const t = now - Number(time.dataset.at);
    const units = [[172800, 86400, 'days'], [7200, 3600, 'h'], [120, 60, 'min']];
    const [, size, unit] = units.find(([from]) => t >= from) || [0, 1, 's'];
    const words = t < 2 ? 'just now' : `${Math.round(t / size)} ${unit} ago`;
    if (time.textContent !== words) time.textContent = words;
  }
}

const DOTS = 60, BARS = 60, PHASES = 14;
const HIGH = 220, LEFT = 62, RIGHT = 14, TOP = 10, BOTTOM = 34;
const trained = row => row.asked > 0;
const FIGURES = [
  {
    id: 'accuracy', title: 'Accuracy', unit: 'share of examples', say: short, axis: plain, series: [
      ['central test set', row => row.accuracy],
      ["clients' own test data", row => row.client_accuracy],
    ],
  },
  {
    id: 'loss', title: 'Loss', unit: 'cross-entropy, nats', say: short, axis: plain, series: [
      ['central test set', row => row.loss],
      ['training', row => row.train_loss],
      ["clients' own test data", row => row.client_loss],
    ],
  },
  {id: 'seconds', title: 'Time', unit: 'of a round, by phase', axis: spanOnAxis, zero: true, bars: true},
  {
    id: 'bytes', title: 'Traffic', unit: 'of a round, as serialised', say: bytes, axis: wholeBytes,
    zero: true, rows: trained, series: [
      ['to clients', row => row.bytes_down],
      ['from clients', row => row.bytes_up],
    ],
  },
  {
    id: 'replies', title: 'Replies', unit: 'clients in a round', say: count, axis: plain, zero: true,
    rows: trained, series: [
      ['asked', row => row.asked],
      ['answered', row => row.answered],
      ['quarantined', row => row.quarantined_count],
    ],
  },
];
const drawings = new Map();

function frame(spec) {
  const made = {plot: h('div'), legend: h('ul', {class: 'legend'}), readout: h('p', {class: 'readout'})};
  const caption = h('figcaption', {}, spec.title + ' ', h('span', {}, spec.unit));
  document.getElementById('figures').append(
    h('figure', {id: 'plot-' + spec.id}, caption, made.plot, made.legend, made.readout));
  return made;
}

function drawPlots(all, mark) {
  for (const spec of FIGURES) {
    if (!drawings.has(spec.id)) drawings.set(spec.id, frame(spec));
  }
  for (const spec of FIGURES) {
    const made = drawings.get(spec.id);
    const wide = Math.max(240, Math.floor(made.plot.clientWidth));
    const shows = `${wide} ${mark} ${all.length}`;
    if (made.shows === shows) continue;
    made.shows = shows;
    const rows = all.filter(row => known(row.round) && (!spec.rows || spec.rows(row)));
    const data = spec.bars ? stacked(rows) : lines(spec, rows);
    if (data.series.length) {
      draw(spec, made, data, wide);
    } else {
      made.plot.replaceChildren(h('p', {class: 'soft'}, 'Nothing was measured yet.'));
      made.legend.replaceChildren();
      made.readout.textContent = '';
    }
  }
}

// What a plot shows: series with points [round, from, to, last round], and the words about a row.
function lines(spec, rows) {
  const series = spec.series.map(([name, value], k) => {
    const points = rows.filter(row => known(value(row))).map(row => [row.round, 0, value(row), row.round]);
    return {name, k, points};
  });
  const words = row => spec.series.filter(([, value]) => known(value(row)))
    .map(([name, value]) => `${name} ${spec.say(value(row))}`);
  return {series: series.filter(one => one.points.length), rows, words};
}

function stacked(all) {
  const rows = all.filter(row => Object.keys(row.seconds).length);
  const keys = new Set(rows.flatMap(row => Object.keys(row.seconds)));
  const phases = [...keys].filter(phase => phase !== 'total');
  const group = Math.max(1, Math.ceil(rows.length / BARS));
  const bars = [];
  for (let i = 0; i < rows.length; i += group) bars.push(rows.slice(i, i + group));
  const tops = bars.map(() => 0);
  const series = phases.slice(0, PHASES).map((name, k) => {
    const points = bars.map((bar, i) => {
      const from = tops[i];
      tops[i] += bar.reduce((total, row) => total + (row.seconds[name] || 0), 0) / bar.length;
      return [bar[0].round, from, tops[i], bar.at(-1).round];
    });
    return {name, k, points};
  });
  const words = row => phases.filter(phase => known(row.seconds[phase]))
    .map(phase => `${phase} ${span(row.seconds[phase])}`);
  return {series, rows, words, group};
}

function range(values, low, high) {
  return values.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [low, high]);
}

// Where things are: x of a round, y of a value, and the numbers at the axes.
function scales(spec, points, wide) {
  const [first, last] = range(points.flatMap(p => [p[0], p[3]]), Infinity, -Infinity);
  const rim = spec.bars || first === last ? 0.5 : 0;
  const up = ticks(...range(points.map(p => p[2]), spec.zero ? 0 : Infinity, spec.zero ? 0 : -Infinity), 5);
  const [low, high] = [up[0], up.at(-1)];
  const across = ticks(first, last, wide < 420 ? 4 : 7);
  return {
    first, last, up, high,
    across: across.filter(t => Number.isInteger(t) && t >= first && t <= last),
    x: t => (LEFT + (t - first + rim) / (last - first + 2 * rim) * (wide - LEFT - RIGHT)).toFixed(1),
    y: v => (HIGH - BOTTOM - (v - low) / (high - low) * (HIGH - TOP - BOTTOM)).toFixed(1),
    round: at => first - rim + (at - LEFT) / (wide - LEFT - RIGHT) * (last - first + 2 * rim),
  };
}

// Round numbers from below the lowest to above the highest value.
function ticks(low, high, most) {
  const room = low === high ? Math.abs(low) / 10 || 1 : 0;
  const [from, to] = [low ? low - room : low, high + room];
  const ten = 10 ** Math.floor(Math.log10((to - from) / most));
  const step = ten * ([1, 2, 5].find(m => m * ten >= (to - from) / most * 0.999) || 10);
  const marks = [];
  for (let i = Math.floor(from / step + 1e-9); i <= Math.ceil(to / step - 1e-9); i++) {
    marks.push(Number((i * step).toPrecision(12)));
  }
  return marks;
}

function bars(one, {x, y}) {
  return one.points.map(([from, bottom, top, to]) => {
    const [left, right] = [Number(x(from - 0.45)), Number(x(to + 0.45))];
    const width = Math.max(right - left, 0.5).toFixed(1);
    const height = Math.max(y(bottom) - y(top), 0).toFixed(1);
    return s('rect', {class: 'bar', x: left, y: y(top), width, height});
  });
}

function curve(one, {x, y}) {
  const way = one.points.map(([t, , v], i) => `${i ? 'L' : 'M'}${x(t)} ${y(v)}`).join('');
  const dots = one.points.length <= DOTS ? one.points : [];
  return [
    s('path', {class: 'line d' + one.k % 3, d: way}),
    dots.map(([t, , v]) => s('circle', {class: 'dot', r: 2.6, cx: x(t), cy: y(v)})),
  ];
}

function draw(spec, made, data, wide) {
  const scale = scales(spec, data.series.flatMap(one => one.points), wide);
  const words = row => `round ${row.round}: ${data.words(row).join(' · ') || 'not measured'}`;
  const latest = words(data.rows.at(-1));
  const cross = s('line', {class: 'cross', y1: TOP, y2: HIGH - BOTTOM, visibility: 'hidden'});
  const label = `${spec.title} ${spec.unit}, rounds ${scale.first} to ${scale.last}. Latest: ${latest}`;
  const picture = s('svg', {viewBox: `0 0 ${wide} ${HIGH}`, role: 'img', 'aria-label': label},
    scale.up.map(v => [
      s('line', {class: 'grid', x1: LEFT, x2: wide - RIGHT, y1: scale.y(v), y2: scale.y(v)}),
      s('text', {x: LEFT - 8, y: Number(scale.y(v)) + 4, 'text-anchor': 'end'}, spec.axis(v, scale.high)),
    ]),
    scale.across.map(t =>
      s('text', {x: scale.x(t), y: HIGH - BOTTOM + 16, 'text-anchor': 'middle'}, count(t))),
    s('text', {x: (LEFT + wide - RIGHT) / 2, y: HIGH - 3, 'text-anchor': 'middle'},
      data.group > 1 ? `round; a bar is the mean of ${data.group}` : 'round'),
    data.series.map(one => s('g', {class: 'k' + one.k % 7, 'data-series': one.name},
      spec.bars ? bars(one, scale) : curve(one, scale))),
    cross);
  const rest = () => {
    cross.setAttribute('visibility', 'hidden');
    made.readout.textContent = latest;
  };
  picture.addEventListener('pointerleave', rest);
  picture.addEventListener('pointermove', event => {
    const box = picture.getBoundingClientRect();
    const t = scale.round((event.clientX - box.left) * wide / box.width);
    const off = row => Math.abs(row.round - t);
    const near = data.rows.reduce((best, row) => off(row) < off(best) ? row : best);
    cross.setAttribute('x1', scale.x(near.round));
    cross.setAttribute('x2', scale.x(near.round));
    cross.setAttribute('visibility', 'visible');
    made.readout.textContent = words(near);
  });
  made.plot.replaceChildren(picture);
  made.legend.replaceChildren(...data.series.map(one => legend(spec, one)));
  rest();
}

function legend(spec, one) {
  const swatch = spec.bars ? s('rect', {class: 'bar', width: 28, height: 10})
    : s('path', {class: 'line d' + one.k % 3, d: 'M1 5L27 5'});
  const picture = s('svg', {viewBox: '0 0 28 10', 'aria-hidden': 'true'}, swatch);
  return h('li', {class: 'k' + one.k % 7}, picture, one.name);
}

const POLL_MS = 2000, SHOWN_ROUNDS = 25, SHOWN_QUARANTINED = 200;
const [, section, subject] = location.pathname.split('/');
const run = section === 'runs' ? subject : null;  // as escaped in the address
const live = document.getElementById('live'), pause = document.getElementById('pause');
const held = {rounds: [], after: 0, mark: '', problems: []};
let paused = false, busy = false, showAll = false;

async function ask(path) {
  const answer = await fetch(path, {cache: 'no-store'});
  const found = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(found.error), {status: answer.status});
  return found;
}

function head(title, ...under) {
  document.title = `${title} · Bouquet monitor`;
  return [h('h1', {}, title), h('p', {class: 'soft'}, under)];
}

const what = r => [r.algorithm, r.dataset, r.model].filter(known).join(', ');
const progress = r => known(r.round) ? r.round + (known(r.of) ? ` of ${r.of}` : '') : '';
const where = r => r.measured_on === 'clients' ? ' (clients)' : '';
const measured = r => known(r.accuracy) ? short(r.accuracy) + where(r) : '';

// ---- the list of runs

async function runsPage() {
  const found = await ask('/api/runs');
  part('head', found.folder, () => head('Runs', found.folder));
  problems([...found.problems, ...found.warnings]);
  part('runs', [found.runs, found.count], () => runsTable(found));
  return found.now;
}

function runsTable({runs, count: all}) {
  if (!runs.length) return h('p', {}, 'No run yet.');
  const link = r => h('a', {href: '/runs/' + encodeURIComponent(r.name)}, r.name);
  const tried = job => job.attempts ? `, attempt ${job.attempts}` : '';
  const job = ({job}) => job ? [job.state + tried(job), note(job.reason)] : '';
  const caption = all > runs.length ? `The latest ${runs.length} of ${all} runs` : 'Runs, the latest first';
  return table(caption, [
    ['Run', r => [link(r), r.problems.map(line => note(line, 'problem'))]],
    ['State', r => state(r.state)],
    ['Algorithm', r => [r.algorithm, note([r.dataset, r.model].filter(known).join(', '))]],
    ['Round', progress, true],
    ['Accuracy', measured, true],
    ...(runs.some(r => r.job) ? [['Job', job]] : []),
    ['Started', r => moment(r.started)],
    ['Last written', r => age(r.updated)],
  ], runs, true);
}

// ---- one run

async function runPage() {
  const found = await ask(`/api/runs/${run}`);
  for (let more = true; more;) {
    const news = await ask(`/api/runs/${run}/rounds?after=${held.after}&mark=${held.mark}`);
    if (news.anew) Object.assign(held, {rounds: [], problems: []});
    for (const row of news.rounds) held.rounds.push(row);
    for (const line of news.problems) if (!held.problems.includes(line)) held.problems.push(line);
    Object.assign(held, {after: news.after, mark: news.mark});
    more = news.more;
  }
  const clients = await ask(`/api/runs/${run}/clients`);
  const r = found.run, rounds = held.rounds;
  const dropped = total('quarantined_count');
  const lines = latestQuarantined();
  part('head', [r.name, what(r), r.started, r.updated], () => head(r.name,
    known(what(r)) ? what(r) + ' · ' : '',
    known(r.started) ? ['started ', moment(r.started), ' · '] : '',
    known(r.updated) ? ['last written ', age(r.updated)] : ''));
  problems([...found.problems, ...found.warnings, ...r.problems, ...held.problems, ...clients.problems]);
  part('facts', [r, held.mark], () => runFacts(r));
  part('reason', r.job?.reason, () => r.job?.reason ? h('p', {}, 'Job: ' + r.job.reason) : '');
  part('plots', '', () => [h('h2', {}, 'Plots'), h('div', {class: 'plots', id: 'figures'})]);
  drawPlots(rounds, held.mark);
  part('quarantined', [lines, dropped, !rounds.length], () => [
    h('h2', {}, 'Quarantined replies'), quarantinedTable(lines, dropped)]);
  showRounds();
  part('clients', [clients, dropped], () => [h('h2', {}, 'Clients'), clientsTable(clients)]);
  part('config', found.config, () => configuration(Object.entries(found.config)));
  return found.now;
}

function latestQuarantined() {
  const lines = [];
  for (let i = held.rounds.length - 1; i >= 0 && lines.length < SHOWN_QUARANTINED; i--) {
    const {round, quarantined} = held.rounds[i];
    lines.push(...quarantined.map(q => ({round, ...q})));
  }
  return lines.slice(0, SHOWN_QUARANTINED);
}

const total = key => held.rounds.reduce((sum, row) => sum + (row[key] || 0), 0);

function runFacts(r) {
  const rounds = held.rounds, last = rounds.at(-1) || {};
  const key = r.measured_on === 'clients' ? 'client_accuracy' : 'accuracy';
  const best = rounds.reduce((most, row) => Math.max(most, row[key] ?? -1), -1);
  const some = words => rounds.length ? words : '';
  return facts([
    ['State', state(r.state)],
    ['Round', progress(r)],
    ['Accuracy', measured(r)],
    ['Best accuracy', best >= 0 ? short(best) : ''],
    ['Loss', short(last.loss ?? last.client_loss)],
    ['Replies, last round', known(last.asked) ? `${last.answered} of ${last.asked}` : ''],
    ['Quarantined replies', some(count(total('quarantined_count')))],
    ['Skipped rounds', some(count(rounds.filter(row => row.skipped).length))],
    ['Sent to clients', some(bytes(total('bytes_down')))],
    ['Received', some(bytes(total('bytes_up')))],
    ['Time in rounds', some(span(rounds.reduce((sum, row) => sum + (row.seconds.total || 0), 0)))],
    ['Attempts', r.job?.attempts ? count(r.job.attempts) : ''],
  ]);
}

function quarantinedTable(lines, dropped) {
  if (!dropped) return h('p', {}, held.rounds.length ? 'None.' : 'No round is done.');
  const field = q => known(q.field) ? `field ${q.field}: ` : '';
  const told = q => known(q.expected) || known(q.got);
  const reason = q => told(q) ? `${field(q)}expected ${q.expected}; got ${q.got}` : q.reason;
  const rest = lines.length < dropped ? `; ${lines.length} shown` : '';
  return table(`${count(dropped)} dropped before they reached the model, the latest first${rest}`, [
    ['Client', q => q.client],
    ['Round', q => count(q.round), true],
    ['Reason', reason],
  ], lines, true);
}

function showRounds() {
  part('rounds', [held.mark, held.rounds.length, showAll], () => [
    h('h2', {}, 'Rounds'), roundsTable(held.rounds)]);
}

function roundsTable(rounds) {
  if (!rounds.length) return h('p', {}, 'No round is done.');
  const measures = [
    ['Accuracy', 'accuracy'], ['Loss', 'loss'], ['Client accuracy', 'client_accuracy'],
    ['Client loss', 'client_loss'], ['Train loss', 'train_loss'],
  ].filter(([, key]) => rounds.some(row => known(row[key])));
  const shown = (showAll ? rounds : rounds.slice(-SHOWN_ROUNDS)).toReversed();
  const words = showAll ? `Show the latest ${SHOWN_ROUNDS}` : `Show all ${count(rounds.length)}`;
  const button = h('button', {type: 'button', class: 'more', id: 'all'}, words);
  button.addEventListener('click', () => {
    showAll = !showAll;
    showRounds();
  });
  return [table('Rounds, the latest first', [
    ['Round', row => count(row.round), true],
    ...measures.map(([name, key]) => [name, row => short(row[key]), true]),
    ['Asked', row => count(row.asked), true],
    ['Answered', row => count(row.answered), true],
    ['Quarantined', row => count(row.quarantined_count), true],
    ['Sent', row => bytes(row.bytes_down), true],
    ['Received', row => bytes(row.bytes_up), true],
    ['Time', row => span(row.seconds.total), true],
    ['Note', row => row.skipped ? 'skipped' : ''],
  ], shown), rounds.length > SHOWN_ROUNDS ? button : ''];
}

function clientsTable(found) {
  const none = found.more ? 'Still reading …' : 'No client has told numbers of its own yet.';
  if (!found.count) return h('p', {}, none);
  const times = new Map();
  for (const row of held.rounds) {
    for (const q of row.quarantined) times.set(q.client, (times.get(q.client) || 0) + 1);
  }
  const shown = found.clients.length, all = found.count;
  const some = `The ${shown} with the lowest accuracies of ${count(all)} clients`;
  const caption = (shown < all ? some : 'Clients with their last numbers')
    + (found.left_out ? '; more were left out' : '') + (found.more ? '; still reading' : '');
  return table(caption, [
    ['Client', c => c.name],
    ['Accuracy', c => short(c.accuracy), true],
    ['Loss', c => short(c.loss), true],
    ['Measured in round', c => count(c.round), true],
    ['Train loss', c => short(c.train_loss), true],
    ['Examples', c => count(c.examples), true],
    ['Times trained', c => count(c.trained), true],
    ['Quarantined', c => count(times.get(c.name) || 0), true],
  ], found.clients);
}

function configuration(pairs) {
  if (!pairs.length) return '';
  const made = table('Some of the run-config keys, and versions', [
    ['Key', ([key]) => key],
    ['Value', ([, value]) => value],
  ], pairs);
  return h('details', {}, h('summary', {}, 'Configuration'), made);
}

// ---- nodes

async function nodesPage() {
  const found = await ask('/api/nodes');
  const written = known(found.written) ? [' · status written ', age(found.written)] : '';
  const at = known(found.address) ? ` · listens on ${found.address}` : '';
  const light = known(found.state) ? [' · ', state(found.state)] : '';
  part('head', [found.folder, found.written, at, found.state],
    () => head('Nodes', found.folder, at, written, light));
  problems([...found.problems, ...found.warnings]);
  part('nodes', [found.nodes, found.there, found.kit], () => nodesTable(found));
  part('processes', found.processes, () => processesTable(found.processes));
  return found.now;
}

function nodesTable({nodes, there, kit}) {
  if (!kit) return h('p', {}, 'This folder is no kit of a link: nothing is known of nodes.');
  if (!there) return h('p', {}, 'The link has written no status yet.');
  if (!nodes.length) return h('p', {}, 'No node is registered.');
  return table('Nodes', [
    ['Node', n => n.name],
    ['State', n => [state(n.online === null ? 'unknown' : n.online ? 'online' : 'offline'),
      n.online ? note(n.problem, 'problem') : '']],
    ['Last seen', n => age(n.last_seen)],
    ['Clients', n => count(n.clients), true],
    ['Examples', n => count(n.examples), true],
    ['App version', n => n.app_version],
  ], nodes, true);
}

function processesTable(processes) {
  if (!processes.length) return '';
  return [h('h2', {}, 'Processes'), table('Processes of the link', [
    ['Process', p => p.name],
    ['State', p => state(p.running === null ? 'unknown' : p.running ? 'running' : 'stopped')],
    ['Up for', p => span(p.uptime_s)],
    ['Process id', p => known(p.pid) ? String(p.pid) : '', true],
    ['Restarts', p => count(p.restarts), true],
  ], processes, true)];
}

// ---- the loop

const page = section === 'nodes' ? nodesPage : run !== null ? runPage : runsPage;

async function look() {
  if (busy) return;
  busy = true;
  try {
    ages(await page());
    say(paused ? 'Paused' : `Live, every ${POLL_MS / 1000} s`);
  } catch (err) {
    if (err.status === 404) problems(['There is no such run (any more).']);
    say(err.status === 404 ? 'Waiting for the run' : `No answer (${err.message}); trying again`);
  } finally {
    busy = false;
  }
}

function say(words) {
  if (live.textContent !== words) live.textContent = words;
}

async function loop() {
  if (!paused && !document.hidden) await look();
  setTimeout(loop, POLL_MS);
}

pause.addEventListener('click', () => {
  paused = !paused;
  pause.setAttribute('aria-pressed', String(paused));
  if (paused) say('Paused');
  else look();
});
document.addEventListener('visibilitychange', () => {
  if (!document.hidden && !paused) look();
});
addEventListener('resize', () => {
  if (drawings.size) drawPlots(held.rounds, held.mark);
});
const here = document.getElementById(section === 'nodes' ? 'nav-nodes' : 'nav-runs');
here.setAttribute('aria-current', run === null ? 'page' : 'true');
loop();
