"""How the page looks: one style sheet, light and dark."""

STYLE = """
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #1d2733; --muted: #64707f; --line: #e3e7ec; --tint: #eef2f8;
  --accent: #2563c9; --good: #1b7f5c; --bad: #b3382f; --unsure: #9a6700;
  --good-tint: #e3f4ec; --bad-tint: #fbe9e7; --unsure-tint: #fdf3d9;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #12161c; --card: #1a2029; --ink: #e4e9ef; --muted: #94a1b2; --line: #2d3642; --tint: #222b37;
    --accent: #6ea8ff; --good: #57d3a6; --bad: #ff8f85; --unsure: #e8c055;
    --good-tint: #17352b; --bad-tint: #3d2023; --unsure-tint: #38301a;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink); line-height: 1.5; font-size: 15px;
  font-family: ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
}
main { max-width: 1120px; margin: 0 auto; padding: 40px 24px 64px; }
header { margin-bottom: 28px; }
h1 { font-size: 28px; line-height: 1.2; letter-spacing: -0.015em; margin: 0 0 6px; overflow-wrap: anywhere; }
h2 { font-size: 17px; letter-spacing: -0.005em; margin: 0 0 14px; }
h3 { overflow-wrap: anywhere; font-size: 14px; margin: 20px 0 8px; color: var(--muted); font-weight: 600; }
p { margin: 0 0 10px; overflow-wrap: anywhere; }
.muted { color: var(--muted); }
.small { font-size: 13px; }
section {
  background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 22px 24px; margin-bottom: 20px;
}
.lead { font-size: 20px; line-height: 1.4; letter-spacing: -0.01em; max-width: 56em; margin-bottom: 14px; }
.pill {
  display: inline-block; border-radius: 999px; padding: 2px 11px;
  font-size: 13px; font-weight: 600; white-space: nowrap;
}
.good { background: var(--good-tint); color: var(--good); }
.bad { background: var(--bad-tint); color: var(--bad); }
.unsure { background: var(--unsure-tint); color: var(--unsure); }
.verdict { display: flex; gap: 12px; align-items: baseline; color: var(--muted); }
.verdict span { min-width: 0; overflow-wrap: anywhere; }
.verdict .pill { flex: none; min-width: 8em; text-align: center; }
.verdict + .verdict { margin-top: 8px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin-top: 18px; }
.tile { background: var(--tint); border-radius: 10px; padding: 12px 16px; }
.tile b { display: block; font-size: 24px; font-weight: 650; letter-spacing: -0.02em; }
.tile span { color: var(--muted); font-size: 13px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th {
  text-align: left; font-weight: 600; color: var(--muted); font-size: 12.5px; vertical-align: bottom;
  border-bottom: 1px solid var(--line); padding: 6px 12px 6px 0;
}
td { border-bottom: 1px solid var(--line); padding: 8px 12px 8px 0; vertical-align: top; }
tr:last-child td { border-bottom: 0; }
th:last-child, td:last-child { padding-right: 0; }
.n { text-align: right; }
td.n { white-space: nowrap; }
td:has(> .bar) { width: 26%; }
td small { display: block; color: var(--muted); font-size: 12px; }
.name { font-weight: 600; overflow-wrap: break-word; min-width: 8em; unicode-bidi: isolate; }
.facts { overflow-wrap: anywhere; unicode-bidi: isolate; min-width: 5.5em; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(400px, 1fr)); gap: 20px; }
figure { margin: 0; }
figure img { display: block; width: 100%; height: auto; }
figcaption { color: var(--muted); font-size: 13px; margin-top: 6px; }
.bar {
  position: relative; height: 14px; min-width: 5.5em; margin-top: 4px; background: var(--tint); border-radius: 4px;
}
.bar i { position: absolute; inset: 0 auto 0 0; background: var(--accent); border-radius: 4px; opacity: 0.85; }
.bar u { position: absolute; top: -3px; bottom: -3px; width: 2px; background: var(--ink); }
.two {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(380px, 1fr)); gap: 12px 40px; margin-bottom: 14px;
}
.two > div { min-width: 0; }
.two > .wide { grid-column: 1 / -1; }
.two table:not(.heat) { width: 100%; }
.heat { width: auto; border-collapse: separate; border-spacing: 2px; font-size: 12.5px; }
.heat th, .heat td { border: 0; padding: 0; }
.heat th { color: var(--ink); font-weight: 400; unicode-bidi: isolate; }
.heat thead th { padding: 0 6px 6px; text-align: center; min-width: 28px; }
.heat thead th:has(span) { padding: 0 2px 6px; }
.heat thead th span { writing-mode: vertical-rl; transform: rotate(180deg); max-height: 190px; white-space: nowrap; }
.heat tbody th { text-align: right; padding-right: 10px; white-space: nowrap; vertical-align: middle; }
.heat td { min-width: 28px; height: 28px; text-align: center; vertical-align: middle; border-radius: 4px; }
.heat .hit { background: color-mix(in srgb, var(--accent) calc(var(--v) * 62%), var(--tint)); }
.heat .miss { background: color-mix(in srgb, var(--bad) calc(var(--v) * 75%), var(--tint)); }
.heat .none { background: var(--tint); color: transparent; }
.chain { display: flex; flex-wrap: wrap; gap: 8px; align-items: center; margin-bottom: 16px; color: var(--muted); }
.chain span {
  border: 1px solid var(--line); border-radius: 8px; padding: 5px 12px; color: var(--ink); background: var(--tint);
  max-width: 100%; overflow-wrap: anywhere;
}
details { margin-top: 6px; }
summary { cursor: pointer; font-weight: 600; padding: 4px 0; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 4px 20px; margin: 0; font-size: 14px; }
dt { color: var(--muted); }
dd { margin: 0; overflow-wrap: anywhere; }
@media print { body { background: none; } section { break-inside: avoid; } }
@media (max-width: 520px) {
  main { padding: 24px 12px; } section { padding: 16px; }
  .plots, .two { grid-template-columns: 1fr; }
}
"""
