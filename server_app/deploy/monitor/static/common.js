// What several pages share.

import {h} from './elements.js';
import {known, short} from './words.js';

export async function ask(path) {
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
