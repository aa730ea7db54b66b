"""The page's one style sheet: light, dark, phone, print; colours that the colour-blind tell apart, and never alone."""

from __future__ import annotations

# Blue-green and vermilion of Okabe and Ito's set (Color Universal Design), made darker on light and lighter on dark
# ground until text in them has a contrast of 4.5 to 1 or more (WCAG 2.1, success criterion 1.4.3).
CSS = """
:root {color-scheme:light dark;--bg:#fbfbf9;--card:#fff;--ink:#1c2024;--dim:#5b6470;--rule:#dcdfe3;
  --soft:#f1f2f0;--good:#00694c;--warn:#8a5300;--bad:#b03a00;--line:#0b5c96;--area:#0b5c9622;--base:#8a5300;
  --band:#7b809026;--good-bg:#e3f3ec;--warn-bg:#fdf1dc;--bad-bg:#fce8df}
@media (prefers-color-scheme:dark) {
  :root {--bg:#14171a;--card:#1c2024;--ink:#e6e8ea;--dim:#a0a8b2;--rule:#343a41;--soft:#23282d;--good:#4fc79f;
    --warn:#f0b45a;--bad:#ff8e5c;--line:#6db8f0;--area:#6db8f02e;--base:#f0b45a;--band:#aab2c02b;
    --good-bg:#12332a;--warn-bg:#362a12;--bad-bg:#3b2015}
}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;text-size-adjust:100%}
body {margin:0;background:var(--bg);color:var(--ink);
  font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","DejaVu Sans",sans-serif;
  overflow-wrap:anywhere}
main,header,footer{max-width:1040px;margin:0 auto;padding:0 20px}
h1,h2,h3{line-height:1.25;margin:0}
h1{font-size:1.9rem;letter-spacing:-.01em}
h2{font-size:1.2rem;margin:2.4rem 0 .8rem;padding-bottom:.35rem;border-bottom:1px solid var(--rule)}
h3{font-size:1rem}
p,ul,ol,dl{margin:.4rem 0}
ul{padding-left:1.2rem}
li{margin:.2rem 0}
a{color:var(--line)}
code,.mono{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;font-size:.9em}
.dim{color:var(--dim)}
.kicker{color:var(--dim);font-size:.9rem;margin:1.8rem 0 .3rem}
.verdict {border-left:6px solid var(--dim);background:var(--card);border-radius:4px;padding:14px 18px;
  margin:.9rem 0;box-shadow:0 1px 3px #0002}
.verdict .word{font-size:1.25rem;font-weight:700;margin:0}
.verdict.good,.verdict.warn,.verdict.bad{color:var(--ink)}
.verdict.good{border-color:var(--good);background:var(--good-bg)}
.verdict.good .word{color:var(--good)}
.verdict.warn{border-color:var(--warn);background:var(--warn-bg)}
.verdict.warn .word{color:var(--warn)}
.verdict.bad{border-color:var(--bad);background:var(--bad-bg)}
.verdict.bad .word{color:var(--bad)}
.code {font-size:.85rem;font-weight:600;color:var(--ink);border:1px solid currentColor;border-radius:10px;
  padding:1px 9px;margin-left:.6rem;white-space:nowrap;vertical-align:2px}
.next {display:block;background:var(--card);border:1px solid var(--rule);border-radius:4px;padding:9px 12px;
  margin-top:.3rem;user-select:all}
.good{color:var(--good)}
.warn{color:var(--warn)}
.bad{color:var(--bad)}
.facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(230px,1fr));gap:10px 24px;margin:1.1rem 0}
.facts div{min-width:0}
dt{color:var(--dim);font-size:.8rem}
dd{margin:0}
.notices{list-style:none;padding:0}
.notices li{border-left:3px solid var(--warn);background:var(--soft);padding:6px 12px;margin:.35rem 0}
.pair{display:grid;grid-template-columns:1fr 1fr;gap:24px}
.pair>div{min-width:0}
figure{margin:0}
figcaption{color:var(--dim);font-size:.85rem;margin-top:.4rem}
table{border-collapse:collapse;width:100%;font-size:.93rem;margin:.6rem 0}
th,td{text-align:left;vertical-align:top;padding:6px 14px 6px 0;border-bottom:1px solid var(--rule)}
th{color:var(--dim);font-weight:600;font-size:.8rem}
th[scope=row]{color:var(--ink);font-size:.93rem;min-width:13em}
td.num,th.num{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
td.tight,th.tight{overflow-wrap:normal}
.sub{color:var(--dim);font-size:.8rem;font-weight:400;margin-left:.6em}
caption{text-align:left;color:var(--dim);font-size:.85rem;padding-bottom:4px}
.no {display:inline-block;min-width:1.6em;height:1.6em;line-height:1.6em;border-radius:.8em;
  background:var(--ink);color:var(--bg);text-align:center;font-size:.8rem;font-weight:700;
  font-variant-numeric:tabular-nums}
.chapter{border-left:2px solid var(--rule);margin:0 0 1.2rem 6px;padding-left:16px}
.chapter.good{border-color:var(--good)}
.chapter.warn{border-color:var(--warn)}
.chapter.bad{border-color:var(--bad)}
.chapter,.chapter h3{color:var(--ink)}
.chapter .end{font-weight:600}
.items{list-style:none;padding:0;margin:.3rem 0}
.items>li{display:grid;grid-template-columns:5.2em 4.4em 1fr;gap:0 10px;font-size:.93rem;margin:.28rem 0}
.items time{color:var(--dim);font-variant-numeric:tabular-nums}
.kind{color:var(--dim);font-size:.8rem;padding-top:2px}
.items .warn .kind,.items .bad .kind,.items .good .kind{color:inherit;font-weight:600}
.items li.warn,.items li.bad,.items li.good{color:var(--ink)}
.items .bad .kind{color:var(--bad)}
.items .warn .kind{color:var(--warn)}
.items .good .kind{color:var(--good)}
.times{color:var(--dim);font-size:.85rem}
details{margin:.3rem 0}
summary{cursor:pointer;color:var(--dim);font-size:.88rem}
svg{display:block;width:100%;height:auto;font-family:inherit}
.chart.narrow{display:none}
.chart text{fill:var(--ink);font-size:13px}
.chart .figure{font-variant-numeric:tabular-nums;font-size:12px}
.chart .end{text-anchor:end}
.chart .small,.chart .tick{fill:var(--dim);font-size:11px}
.chart .tick{text-anchor:middle}
.chart .tick.first{text-anchor:start}
.chart .unknown{fill:var(--dim);font-size:12px;text-anchor:middle}
.strip{fill:var(--soft)}
.line{fill:none;stroke:var(--line);stroke-width:1.8;stroke-linejoin:round}
.way{fill:none;stroke:var(--line);stroke-width:1.4;stroke-dasharray:1.5 3.5;stroke-linecap:round}
.area{fill:var(--area)}
.dot{fill:var(--line)}
.baseline{fill:none;stroke:var(--base);stroke-width:1.3;stroke-dasharray:7 4}
.hatch{stroke:var(--dim);stroke-width:1;opacity:.55}
.gap{stroke:var(--rule)}
.rung{fill:var(--band)}
.lead{stroke:var(--dim);stroke-width:1}
.badge{fill:var(--ink)}
.chart .number{fill:var(--bg);text-anchor:middle;font-size:11px;font-weight:700}
.pause{fill:var(--rule)}
.verdict-at{stroke:var(--good);stroke-width:1.5;fill:none}
.chart .mark{fill:var(--good);font-size:11px;font-weight:700}
.axis{fill:none;stroke:var(--dim);stroke-width:1}
.key{display:flex;flex-wrap:wrap;gap:4px 18px}
footer{color:var(--dim);font-size:.85rem;margin-top:3rem;padding-bottom:2.5rem}
@media (max-width:640px) {
  main,header,footer{padding:0 14px}
  h1{font-size:1.5rem}
  .pair{grid-template-columns:1fr;gap:8px}
  .chart .small,.chart .tick,.chart .number{font-size:12px}
  .chart.wide{display:none}
  .chart.narrow{display:block}
  .cards thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
  .cards,.cards tbody,.cards tr,.cards td,.cards th{display:block}
  .cards caption{display:block}
  .sub{display:block;margin:0}
  th[scope=row]{min-width:0}
  .cards tr{border-bottom:1px solid var(--rule);padding:8px 0}
  .cards td,.cards th[scope=row] {border:0;padding:1px 0;display:grid;grid-template-columns:7.2em 1fr;
    gap:10px;white-space:normal;text-align:left;color:var(--ink);font-size:.93rem}
  .cards td::before,.cards th[scope=row]::before {content:attr(data-label);color:var(--dim);font-size:.8rem;
    font-weight:400}
  .cards td:empty{display:none}
  .facts{grid-template-columns:1fr 1fr}
  .figures td,.figures th{font-size:.78rem;padding-right:8px}
  .figures td:last-child,.figures th:last-child{padding-right:0}
  .items>li{grid-template-columns:4em 1fr;gap:0 8px}
  .items>li>.what{grid-column:1/-1}
  .chapter{padding-left:12px}
}
@media print {
  :root {color-scheme:light;--bg:#fff;--card:#fff;--soft:#f4f4f4;--ink:#000;--dim:#444;--rule:#bbb;
    --good:#00543d;--warn:#6d4200;--bad:#8a2d00;--line:#0b5c96;--area:#0b5c9622;--base:#6d4200;
    --band:#0000001c;--good-bg:#fff;--warn-bg:#fff;--bad-bg:#fff}
  body{font-size:10.5pt}
  main,header,footer{max-width:none;padding:0}
  h2,h3{break-after:avoid}
  .verdict,tr,figure,.items>li{break-inside:avoid}
  .verdict{box-shadow:none}
  .badge,.no{print-color-adjust:exact;-webkit-print-color-adjust:exact}
}
"""
