"""The monitor's script, second part: the plots of a run.

They are drawn in the browser rather than by matplotlib: they follow theme and width, a new round moves them
at once, and the machine of the link spends neither memory nor time on them.
"""

from __future__ import annotations

PLOTS = r"""
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
"""
