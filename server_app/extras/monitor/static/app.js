// Asks for what the page shows, every two seconds, and shows it.

import {ages, problems} from './elements.js';
import {runsPage} from './runs.js';
import {runPage} from './run.js';
import {nodesPage} from './nodes.js';

const POLL_MS = 2000;
const [, section, subject] = location.pathname.split('/');  // the subject as escaped in the address
const live = document.getElementById('live'), pause = document.getElementById('pause');
const page = section === 'nodes' ? nodesPage : section === 'runs' ? () => runPage(subject) : runsPage;
let paused = false, busy = false;

async function look() {
  if (busy) return;
  busy = true;
  try {
    ages(await page());
    say(paused ? 'Paused' : `Live, every ${POLL_MS / 1000} s`);
  } catch (err) {
    if (err.status === 404) problems(['There is no such run, or it was deleted.']);
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
const here = document.getElementById(section === 'nodes' ? 'nav-nodes' : 'nav-runs');
here.setAttribute('aria-current', section === 'runs' ? 'true' : 'page');
loop();
