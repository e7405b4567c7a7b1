// A report: the page of one run as a file, which is drawn once, and again where its width changes.

import {runPage} from './run.js';

let waiting = 0;
runPage('');
addEventListener('resize', () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => runPage(''), 200);
});
