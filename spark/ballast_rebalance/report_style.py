"""The style sheet of the report: light and dark, narrow and wide, print. Text only."""

STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--paper:#fff;--quiet:#57606a;--line:#d0d7de;--track:#e7ebef;
--before:#9a5b00;--after:#1a6b45}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--paper:#0f1419;--quiet:#9aa7b4;--line:#30363d;--track:#262c34;
--before:#e0a458;--after:#5cc391}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
main{max-width:68rem;margin:0 auto;padding:1rem}
h1{font-size:1.6rem;line-height:1.2;margin:.5rem 0}
h2{font-size:1.2rem;margin:2rem 0 .5rem}
header p{color:var(--quiet);overflow-wrap:anywhere}
code,pre,.path{font-family:ui-monospace,monospace;font-size:.85rem}
pre{padding:.8rem;border:1px solid var(--line);border-radius:.4rem;white-space:pre-wrap;overflow-wrap:anywhere}
.columns{display:grid;gap:1rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,20rem),1fr))}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
caption{text-align:left;color:var(--quiet);font-size:.9rem;padding:.2rem 0}
.scroll caption{padding:.3rem .5rem}
th,td{padding:.3rem .5rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top;font-weight:400}
thead th{color:var(--quiet);font-size:.85rem}
dl{display:grid;grid-template-columns:1fr auto;gap:.3rem 1rem;margin:0;align-content:start}
dt{color:var(--quiet)}dd{margin:0;text-align:right;font-variant-numeric:tabular-nums}
.scroll{overflow-x:auto;max-height:36rem;overflow-y:auto;border:1px solid var(--line);border-radius:.4rem}
.scroll:focus,.across:focus,pre:focus{outline:2px solid var(--after)}
.wide{min-width:34rem}
.path,.wide tbody th{overflow-wrap:anywhere}
.number{white-space:nowrap}
.fill{display:flex;gap:.5rem;align-items:center}
.fill svg{width:100%;min-width:5rem;height:.7rem}
.fill span{min-width:3.6rem;text-align:right}
.track{fill:var(--track)}rect.before{fill:var(--before)}rect.after{fill:var(--after)}
.across{overflow-x:auto}
.flow text{fill:var(--ink);font:13px ui-monospace,monospace}.flow path{fill:none;stroke:var(--after);stroke-opacity:.45}
.flow path:hover{stroke-opacity:.9}
@media(max-width:40rem){.fills{min-width:0}.fill svg{display:none}th,td{padding:.3rem}}
@media print{.scroll{max-height:none;overflow:visible}}
"""
