// What several pages share.

import {h} from './elements.js';
import {known, short} from './words.js';

// In a report, which is this page as a file, the answers stand in the page itself.
const filed = JSON.parse(document.getElementById('filed')?.textContent || 'null');

function fromFile(path) {
  const [, , , , rest] = path.split('/'), [what, query] = (rest || 'run').split('?');
  if (what !== 'plots') return filed[what];
  const widths = new URLSearchParams(query);  // of each figure; the widest drawing that fits is taken
  const fits = (name, {width}) => width <= Number(widths.get(name));
  const drawn = ({name}, i) => (filed.plots.findLast(one => fits(name, one)) || filed.plots[0]).plots[i];
  return {plots: filed.plots[0].plots.map(drawn), more: false};
}

export async function ask(path) {
  if (filed) return fromFile(path);
  const answer = await fetch(path, {cache: 'no-store'});
  const found = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(found.error), {status: answer.status});
  return found;
}

export function head(title, ...under) {
  document.title = `${title} · Bouquet monitor`;
  return [h('h1', {}, title), h('p', {class: 'soft'}, under)];
}

export const what = r => [r.algorithm, r.dataset, r.model].filter(known).join(', ');
export const progress = r => known(r.round) ? r.round + (known(r.of) ? ` of ${r.of}` : '') : '';
export const measured = r => known(r.accuracy)
  ? short(r.accuracy) + (r.measured_on === 'clients' ? ' (clients)' : '') : '';
