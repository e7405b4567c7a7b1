// The list of runs.

import {ask, head, measured, progress} from './common.js';
import {age, h, moment, note, part, problems, state, table} from './elements.js';
import {known} from './words.js';

export async function runsPage() {
  const found = await ask('/api/runs');
  part('head', found.folder, () => head('Runs', found.folder));
  problems([...found.problems, ...found.warnings]);
  part('runs', [found.runs, found.count], () => runsTable(found));
  return found.now;
}

function runsTable({runs, count: all}) {
  if (!runs.length) return h('p', {}, 'No runs yet.');
  const link = r => h('a', {href: '/runs/' + encodeURIComponent(r.name)}, r.name);
  const tried = job => job.attempts ? `, attempt ${job.attempts}` : '';
  const on = job => job.nodes ? 'on ' + job.nodes : '';
  const job = ({job}) => job ? [job.state + tried(job), [on(job), job.waits, job.reason].map(words => note(words))] : '';
  return table(all > runs.length ? `The latest ${runs.length} of ${all} runs` : 'Runs, latest first', [
    ['Run', r => [link(r), r.problems.map(line => note(line, 'problem'))]],
    ['State', r => state(r.state)],
    ['Algorithm', r => [r.algorithm, note([r.dataset, r.model].filter(known).join(', '))]],
    ['Round', progress, true],
    ['Accuracy', measured, true],
    ...(runs.some(r => r.job) ? [['Job', job]] : []),
    ['Started', r => moment(r.started)],
    ['Last updated', r => age(r.updated)],
  ], runs, true);
}
