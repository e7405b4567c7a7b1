// The nodes and processes of a link.

import {ask, head} from './common.js';
import {age, h, note, part, problems, state, table} from './elements.js';
import {count, known, span} from './words.js';

export async function nodesPage() {
  const found = await ask('/api/nodes');
  const written = known(found.written) ? [' · status written ', age(found.written)] : '';
  const at = known(found.address) ? ` · listens on ${found.address}` : '';
  const runs = found.app_code ? ` · app ${app(found)}, Flower ${found.flower_version}` : '';
  const light = known(found.state) ? [' · ', state(found.state)] : '';
  part('head', [found.folder, found.written, at, found.state, runs],
    () => head('Nodes', found.folder, at, runs, written, light));
  problems([...found.problems, ...found.warnings]);
  part('nodes', [found.nodes, found.there, found.kit, found.app_code], () => nodesTable(found));
  part('processes', found.processes, () => processesTable(found.processes));
  return found.now;
}

const online = n => n.online === null ? 'unknown' : n.online ? 'online' : 'offline';
const running = p => p.running === null ? 'unknown' : p.running ? 'running' : 'stopped';

const app = n => n.app_code ? `${n.app_version} (${n.app_code})` : n.app_version;

function nodesTable({nodes, there, kit, app_code}) {
  const other = n => n.app_code && app_code && n.app_code !== app_code;
  if (!kit) return h('p', {}, "Nodes are shown for a link's kit only; this folder holds results.");
  if (!there) return h('p', {}, 'The link has not written its status yet.');
  if (!nodes.length) return h('p', {}, 'No nodes are registered.');
  return table('Nodes', [
    ['Node', n => n.name],
    ['State', n => [state(online(n)), n.online || other(n) ? note(n.problem, 'problem') : '']],
    ['Last seen', n => age(n.last_seen)],
    ['Clients', n => count(n.clients), true],
    ['Examples', n => count(n.examples), true],
    ['App', app],
    ['Flower', n => n.flower_version],
  ], nodes, true);
}

function processesTable(processes) {
  if (!processes.length) return '';
  return [h('h2', {}, 'Processes'), table('Processes of the link', [
    ['Process', p => p.name],
    ['State', p => state(running(p))],
    ['Up for', p => span(p.uptime_s)],
    ['Process id', p => known(p.pid) ? String(p.pid) : '', true],
    ['Restarts', p => count(p.restarts), true],
  ], processes, true)];
}
