// One run: its state, plots, quarantined replies, rounds, clients and configuration.

import {ask, head, measured, progress, what} from './common.js';
import {age, drawing, facts, h, moment, part, problems, state, table} from './elements.js';
import {bytes, count, known, short, span} from './words.js';

const SHOWN_ROUNDS = 25, SHOWN_QUARANTINED = 200;
const held = {rounds: [], after: 0, mark: '', problems: []};
const figures = new Map();
let showAll = false, drawn = '';

export async function runPage(run) {
  const found = await ask(`/api/runs/${run}`);
  await askRounds(run);
  const clients = await ask(`/api/runs/${run}/clients`);
  const r = found.run, dropped = total('quarantined_count'), lines = latestQuarantined();
  part('head', [r.name, what(r), r.started, r.updated], () => head(r.name,
    known(what(r)) ? what(r) + ' · ' : '',
    known(r.started) ? ['started ', moment(r.started)] : '',
    known(r.updated) ? [' · last updated ', age(r.updated)] : ''));
  problems([...found.problems, ...found.warnings, ...r.problems, ...held.problems, ...clients.problems]);
  part('facts', [r, held.mark], () => runFacts(r));
  part('facts-more', found.facts, () => found.facts ? pairs(found.facts) : '');
  const why = r.job?.waits || r.job?.reason;
  part('reason', why, () => why ? h('p', {}, 'Job: ' + why) : '');
  part('plots', '', () => [h('h2', {}, 'Plots'), h('div', {class: 'plots', id: 'figures'})]);
  await showPlots(run);
  part('quarantined', [lines, dropped, !held.rounds.length], () => [
    h('h2', {}, 'Quarantined replies'), quarantinedTable(lines, dropped)]);
  showRounds();
  part('clients', [clients, dropped], () => [h('h2', {}, 'Clients'), clientsTable(clients)]);
  part('classes', found.classes, () => found.classes ? classesTable(found.classes) : '');
  part('groups', found.groups, () => found.groups?.length ? [
    h('h2', {}, 'Groups of people'), ...found.groups.map(groupsTable)] : '');
  part('data', found.data, () => origin('Data', found.data));
  part('repeat', found.repeat, () => known(found.repeat) ? [
    h('h2', {}, 'Repeat it'), h('div', {class: 'wide'}, h('pre', {}, h('code', {}, found.repeat)))] : '');
  part('changed', found.changed, () => origin('Run-config keys that are not the default', found.changed));
  part('config', found.config, () => configuration(Object.entries(found.config)));
  return found.now;
}

async function askRounds(run) {
  for (let more = true; more;) {
    const news = await ask(`/api/runs/${run}/rounds?after=${held.after}&mark=${held.mark}`);
    if (news.restarted) Object.assign(held, {rounds: [], problems: []});
    for (const row of news.rounds) held.rounds.push(row);
    for (const line of news.problems) if (!held.problems.includes(line)) held.problems.push(line);
    Object.assign(held, {after: news.after, mark: news.mark});
    more = news.more;
  }
}

const total = key => held.rounds.reduce((sum, row) => sum + (row[key] || 0), 0);

function latestQuarantined() {
  const lines = [];
  for (let i = held.rounds.length - 1; i >= 0 && lines.length < SHOWN_QUARANTINED; i--) {
    const {round, quarantined} = held.rounds[i];
    lines.push(...quarantined.map(q => ({round, ...q})));
  }
  return lines.slice(0, SHOWN_QUARANTINED);
}

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
    ['Received from clients', some(bytes(total('bytes_up')))],
    ['Time in rounds', some(span(rounds.reduce((sum, row) => sum + (row.seconds.total || 0), 0)))],
    ['Attempts', r.job?.attempts ? count(r.job.attempts) : ''],
    ['Nodes', r.job?.nodes],
  ]);
}

// The server draws. It is asked again when there are new rounds or the figures have other widths.
async function showPlots(run) {
  const widths = [...figures].map(([name, {plot}]) => [name, Math.floor(plot.clientWidth)]);
  const shows = JSON.stringify([held.mark, held.rounds.length, widths]);
  if (shows === drawn) return;
  const {plots, more} = await ask(`/api/runs/${run}/plots?${new URLSearchParams(widths)}`);
  for (const plot of plots) showPlot(plot);
  drawn = more ? '' : shows;
  if (!widths.length) await showPlots(run);
}

function showPlot({name, note: words, drawing: tree}) {
  if (!figures.has(name)) figures.set(name, figure(name));
  const {plot, readout} = figures.get(name);
  plot.replaceChildren(tree ? drawing(tree) : h('p', {class: 'soft'}, words));
  plot.dataset.note = tree ? words : '';
  readout.textContent = latest(plot);
}

const latest = plot => [...plot.querySelectorAll('.hit')].at(-1)?.textContent || plot.dataset.note;

function figure(name) {
  const plot = h('div'), readout = h('p', {class: 'readout'});
  document.getElementById('figures').append(h('figure', {id: 'plot-' + name}, plot, readout));
  plot.addEventListener('pointermove', event => {
    const hit = document.elementFromPoint(event.clientX, event.clientY)?.closest('.hit');
    readout.textContent = hit?.textContent || latest(plot);
  });
  plot.addEventListener('pointerleave', () => {
    readout.textContent = latest(plot);
  });
  return {plot, readout};
}

function quarantinedTable(lines, dropped) {
  if (!dropped) return h('p', {}, held.rounds.length ? 'None.' : 'No rounds yet.');
  const field = q => known(q.field) ? `field ${q.field}: ` : '';
  const reason = q => known(q.expected) || known(q.got)
    ? `${field(q)}expected ${q.expected}; got ${q.got}` : q.reason;
  const rest = lines.length < dropped ? `; ${lines.length} shown` : '';
  return table(`${count(dropped)} dropped before they reached the model, latest first${rest}`, [
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
  if (!rounds.length) return h('p', {}, 'No rounds yet.');
  const measures = [
    ['Accuracy', 'accuracy'], ['Loss', 'loss'], ['Client accuracy', 'client_accuracy'],
    ['Client loss', 'client_loss'], ['Train loss', 'train_loss'], ['Epsilon', 'epsilon'],
  ].filter(([, key]) => rounds.some(row => known(row[key])));
  const shown = (showAll ? rounds : rounds.slice(-SHOWN_ROUNDS)).toReversed();
  const words = showAll ? `Show the latest ${SHOWN_ROUNDS}` : `Show all ${count(rounds.length)}`;
  const button = h('button', {type: 'button', class: 'more', id: 'all'}, words);
  button.addEventListener('click', () => {
    showAll = !showAll;
    showRounds();
  });
  return [table('Rounds, latest first', [
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
  if (!found.count) return h('p', {}, found.more ? 'Still reading …' : 'No client has reported numbers yet.');
  const times = new Map();
  for (const row of held.rounds) {
    for (const q of row.quarantined) times.set(q.client, (times.get(q.client) || 0) + 1);
  }
  const shown = found.clients.length, all = found.count;
  const some = `The ${shown} of ${count(all)} clients with the lowest accuracy`;
  const caption = (shown < all ? some : 'Latest numbers of each client')
    + (found.left_out ? '; further clients are left out' : '') + (found.more ? '; still reading' : '');
  return table(caption, [
    ['Client', c => c.name],
    ['Accuracy', c => short(c.accuracy), true],
    ['Loss', c => short(c.loss), true],
    ['Measured in round', c => count(c.round), true],
    ['Train loss', c => short(c.train_loss), true],
    ['Examples', c => count(c.examples), true],
    ['Times trained', c => count(c.trained), true],
    ['Sent', c => bytes(c.bytes_down), true],
    ['Received', c => bytes(c.bytes_up), true],
    ['Quarantined', c => count(times.get(c.name) || 0), true],
  ], found.clients);
}

function classesTable({caption, head: names, rows}) {
  const value = (name, i) => row => ['class', 'examples'].includes(name) ? count(row[i]) : short(row[i]);
  const columns = names.map((name, i) => [name[0].toUpperCase() + name.slice(1), value(name, i), true]);
  return [h('h2', {}, 'Classes'), table(caption, columns, rows)];
}

function groupsTable({caption, head: names, rows}) {
  const value = i => row => typeof row[i] !== 'number' ? row[i]
    : ['people', 'sites'].includes(names[i]) ? count(row[i]) : short(row[i]);
  return table(caption, names.map((name, i) => [name, value(i), rows.some(row => typeof row[i] === 'number')]), rows);
}

const pairs = lines =>
  h('dl', {class: 'pairs'}, lines.map(([name, value]) => [h('dt', {}, name), h('dd', {}, value)]));

function origin(title, lines) {
  return lines ? [h('h2', {}, title), lines.length ? pairs(lines) : h('p', {}, 'None.')] : '';
}

function configuration(lines) {
  if (!lines.length) return '';
  const made = table('Run-config keys, and versions', [
    ['Key', ([key]) => key],
    ['Value', ([, value]) => value],
  ], lines);
  return h('details', {}, h('summary', {}, 'Configuration'), made);
}
