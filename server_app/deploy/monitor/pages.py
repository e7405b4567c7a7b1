"""The monitor's script, last part: the three pages, and the loop that asks for what they show."""

from __future__ import annotations

PAGES = r"""
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
"""
