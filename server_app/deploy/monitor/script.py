"""The monitor's script, first part: elements, tables, and words for numbers. No dependency and no build.

Everything is put on the page as text nodes, never as HTML: names and reasons come from clients.
"""

from __future__ import annotations

SCRIPT = r"""'use strict';
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
"""
