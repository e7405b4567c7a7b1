// Elements of the page. Every text becomes a text node, never HTML: names and reasons come from clients.

import {known, two} from './words.js';

const SIGNS = {
  running: '▶', finished: '✓', failed: '✗', queued: '…', stopped: '■', unfinished: '~',
  online: '●', offline: '○', unknown: '?', green: '●', yellow: '◐', red: '✗',
};
const parts = new Map();

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (known(value)) node.setAttribute(key, value);
  }
  for (const child of children.flat(3)) {
    if (known(child)) node.append(child);  // a string becomes a text node, whatever it holds
  }
  return node;
}
export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);

// A drawing, from the tree that the server sends: [tag, attributes, inside ...].
export function drawing([tag, attributes, ...inside]) {
  const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
  return fill(node, attributes, inside.map(one => Array.isArray(one) ? drawing(one) : one));
}

// Replace a part of the page, only if what it shows has changed: a selection and the focus stay.
export function part(id, shows, make) {
  const text = JSON.stringify(shows);
  if (!parts.has(id)) {
    parts.set(id, {node: h('div', {id}), text: undefined});
    document.getElementById('main').append(parts.get(id).node);
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

export function state(word) {
  const sign = SIGNS[word] ? h('span', {'aria-hidden': 'true'}, SIGNS[word] + ' ') : '';
  return h('span', {class: 'state s-' + word.replace(/[^a-z]/g, '')}, sign, word);
}

export function note(words, kind) {
  return known(words) ? h('span', {class: 'note ' + (kind || '')}, words) : '';
}

export function problems(lines) {
  const list = h('ul', {}, lines.map(line => h('li', {}, line)));
  part('problems', lines, () => lines.length ? h('div', {class: 'problems', role: 'alert'}, list) : '');
}

// Columns are [head, cell(row), numeric]; the first cell of a row names it. With `cards`, the style sheet
// makes cards of the rows on a phone; the roles keep them a table for a screen reader.
export function table(caption, columns, rows, cards) {
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

export function facts(pairs) {
  const some = pairs.filter(([, value]) => known(value));
  const fact = ([name, value]) => h('div', {}, h('dt', {}, name), h('dd', {}, value));
  return h('dl', {class: 'facts'}, some.map(fact));
}

// A time is in seconds since 1970, or a text.
export function moment(at, kind) {
  const date = typeof at === 'number' ? new Date(at * 1000) : new Date(at);
  if (!known(at) || isNaN(date)) return known(at) ? String(at) : '';
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  const words = `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  const iso = date.toISOString();
  return h('time', {datetime: iso, title: words, class: kind, 'data-at': date.getTime() / 1000}, words);
}
export const age = at => moment(at, 'age');

// Write all ages by the server's clock, as the times are.
export function ages(now) {
  for (const time of document.querySelectorAll('time.age')) {
    const t = now - Number(time.dataset.at);
    const units = [[172800, 86400, 'days'], [7200, 3600, 'h'], [120, 60, 'min']];
    const [, size, unit] = units.find(([from]) => t >= from) || [0, 1, 's'];
    const words = t < 2 ? 'just now' : `${Math.round(t / size)} ${unit} ago`;
    if (time.textContent !== words) time.textContent = words;
  }
}
