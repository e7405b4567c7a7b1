"""The monitor's page: one shell without data, its style and its icon."""

from __future__ import annotations

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Bouquet monitor</title>
<link rel="icon" href="/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/app.css">
<script src="/app.js" defer></script>
</head>
<body>
<a class="skip" href="#main">Skip to the content</a>
<header>
  <nav aria-label="Pages">
    <a href="/" class="brand">Bouquet monitor</a>
    <a href="/" id="nav-runs">Runs</a>
    <a href="/nodes" id="nav-nodes">Nodes</a>
  </nav>
  <div class="live">
    <span id="live" role="status">Connecting …</span>
    <button type="button" id="pause" aria-pressed="false">Pause</button>
  </div>
</header>
<main id="main" tabindex="-1">
<noscript>This page needs JavaScript. In a terminal, <code>bouquet status</code> shows the same.</noscript>
</main>
</body>
</html>
"""

ICON = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">
<g fill="#e69f00"><circle cx="16" cy="7" r="5"/><circle cx="8" cy="13" r="5"/><circle cx="24" cy="13" r="5"/>
<circle cx="11" cy="22" r="5"/><circle cx="21" cy="22" r="5"/></g>
<circle cx="16" cy="15" r="5" fill="#0072b2"/>
</svg>
"""

# Okabe and Ito's colours, a little lighter on dark: told apart with every common kind of colour vision. No
# meaning hangs on them alone: lines have dashes, states have words.
STYLE = """
:root {
  color-scheme: light dark;
  --paper: #fff; --panel: #f7f7f5; --ink: #1d1d1f; --soft: #5b5b62; --rule: #dcdcd8; --link: #0b5cad;
  --warn-ink: #7a3b00; --warn-paper: #fff3e0;
  --c0: #0072b2; --c1: #b86e00; --c2: #00795a; --c3: #b34a00; --c4: #2f8fcb; --c5: #a8537f; --c6: #6a6a6a;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #16171a; --panel: #1f2125; --ink: #ececee; --soft: #a9abb3; --rule: #373a41; --link: #7fbcf5;
    --warn-ink: #ffc98a; --warn-paper: #3a2a17;
    --c0: #5aaee8; --c1: #f0b13c; --c2: #3ecfa4; --c3: #ff8a4c; --c4: #9bd3f7; --c5: #e39cc4; --c6: #a5a5a5;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
a { color: var(--link); }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
main:focus { outline: none; }
.skip { position: absolute; left: -99rem; }
.skip:focus { left: 1rem; top: .5rem; background: var(--paper); padding: .3rem .6rem; z-index: 2; }
header, main { max-width: 76rem; margin: 0 auto; padding: 0 1.25rem; }
header { display: flex; flex-wrap: wrap; gap: .4rem 1.5rem; align-items: center;
         justify-content: space-between; padding-top: .8rem; padding-bottom: .8rem; }
nav { display: flex; gap: 1.1rem; align-items: baseline; }
nav a { text-decoration: none; padding: .2rem 0; }
nav a.brand { font-weight: 700; color: var(--ink); }
nav a[aria-current] { border-bottom: 3px solid var(--link); }
.live { display: flex; gap: .8rem; align-items: center; color: var(--soft); font-size: .9rem; }
button { font: inherit; font-size: .9rem; color: var(--ink); background: var(--panel); min-height: 2rem;
         border: 1px solid var(--rule); border-radius: 6px; padding: .15rem .8rem; cursor: pointer; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: .8rem 0 .2rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
.soft { color: var(--soft); margin: 0 0 1rem; overflow-wrap: anywhere; }
.problems { background: var(--warn-paper); color: var(--warn-ink); border-radius: 6px; margin: 1rem 0;
            padding: .7rem 1rem; overflow-wrap: anywhere; }
.problems ul { margin: 0; padding-left: 1.1rem; }
.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); gap: .6rem;
         margin: 1.2rem 0; }
.facts div { background: var(--panel); border-radius: 8px; padding: .55rem .8rem; min-width: 0; }
.facts dt { color: var(--soft); font-size: .82rem; }
.facts dd { margin: 0; font-size: 1.15rem; font-weight: 600; overflow-wrap: anywhere; }
.state { white-space: nowrap; }
.s-failed, .s-offline, .s-red { color: var(--c3); font-weight: 600; }
.s-yellow { color: var(--warn-ink); font-weight: 600; }
.s-running, .s-online, .s-green { color: var(--c2); font-weight: 600; }
.plots { display: grid; gap: 1rem; grid-template-columns: minmax(0, 1fr); }
figure { margin: 0; background: var(--panel); border-radius: 8px; padding: .8rem 1rem; min-width: 0; }
figcaption { font-weight: 600; }
figcaption span, .readout { color: var(--soft); font-weight: 400; font-size: .85rem; }
.readout { margin: .3rem 0 0; min-height: 1.5em; overflow-wrap: anywhere; }
figure svg { display: block; width: 100%; height: auto; touch-action: pan-y; }
svg text { font: 12px system-ui, sans-serif; fill: var(--soft); }
.grid { stroke: var(--rule); stroke-width: 1; }
.cross { stroke: var(--soft); stroke-width: 1; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.legend { display: flex; flex-wrap: wrap; gap: .1rem 1rem; list-style: none; margin: .3rem 0 0; padding: 0;
          font-size: .85rem; }
.legend svg { display: inline-block; width: 28px; height: 10px; margin-right: .4rem; }
.k0 { --k: var(--c0); } .k1 { --k: var(--c1); } .k2 { --k: var(--c2); } .k3 { --k: var(--c3); }
.k4 { --k: var(--c4); } .k5 { --k: var(--c5); } .k6 { --k: var(--c6); }
path.line { stroke: var(--k); } circle.dot, rect.bar { fill: var(--k); }
.d1 { stroke-dasharray: 7 4; } .d2 { stroke-dasharray: 2 4; stroke-linecap: round; }
.wide { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
caption { text-align: left; color: var(--soft); font-size: .85rem; padding-bottom: .3rem; }
th, td { text-align: left; vertical-align: top; padding: .35rem 1rem .35rem 0;
         border-bottom: 1px solid var(--rule); overflow-wrap: anywhere; }
th { font-weight: 600; }
thead th { white-space: nowrap; color: var(--soft); font-size: .85rem; overflow-wrap: normal; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; overflow-wrap: normal; }
.note { display: block; color: var(--soft); font-size: .85rem; }
.note { font-weight: 400; } .note.problem { color: var(--warn-ink); }
.wide td { overflow-wrap: normal; }
.wide th[scope=row]:not(.n) { min-width: 7rem; }
.wide th[scope=row] { position: sticky; left: 0; background: var(--paper); }
summary { cursor: pointer; font-size: 1.15rem; font-weight: 600; margin: 2.2rem 0 .6rem; }
time { white-space: nowrap; }
.more { margin-top: .6rem; }
footer { height: 3rem; }
@media (min-width: 44rem) {
  .plots { grid-template-columns: repeat(2, minmax(0, 1fr)); }
}
@media (min-width: 64rem) {
  .plots { grid-template-columns: repeat(6, minmax(0, 1fr)); }
  .plots figure { grid-column: span 2; } .plots figure:nth-child(-n + 2) { grid-column: span 3; }
}
@media (max-width: 44rem) {
  header, main { padding-left: .9rem; padding-right: .9rem; }
  table.cards thead { position: absolute; left: -99rem; }
  table.cards tbody, table.cards tr, table.cards caption { display: block; }
  table.cards tr { background: var(--panel); border-radius: 8px; padding: .5rem .8rem; margin-bottom: .7rem; }
  table.cards th, table.cards td { display: grid; grid-template-columns: 7rem minmax(0, 1fr); gap: 0 .6rem;
                                   border: 0; padding: .1rem 0; text-align: left; white-space: normal; }
  table.cards th { display: block; font-size: 1.05rem; }
  table.cards td::before { content: attr(data-label); color: var(--soft); font-size: .85rem; }
  table.cards td .note { grid-column: 2; }
  table.cards td.empty { display: none; }
}
"""
