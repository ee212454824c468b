"""Renders a proposal as one HTML page: no network, no script, readable on a phone and by a screen reader (REB-09).

PURE: a load and a plan in, text out. Every picture has its numbers in a table beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape

import numpy as np

from ballast_planner import ClusterLoad, Move, Plan, Quality, plan_hash
from ballast_rebalance.report_flow import flow_svg, natural
from ballast_rebalance.report_style import STYLE

MAX_ROWS = 500
MAX_BARS = 1_000
MAX_FLOW_NAMES = 24


def render(
    load: ClusterLoad,
    plan: Plan,
    cluster: str,
    at_s: float,
    command: str | None,
    lacks: Sequence[str] = (),
    ahead_s: float = 0.0,
) -> str:
    """The page; sizes in `load` are a forecast for `ahead_s` after the measurement."""
    when = datetime.fromtimestamp(int(at_s), UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    title = f"Rebalance proposal for {cluster}"
    sections = [
        f"<header><h1>{escape(title)}</h1><p>Measured at <time>{when}</time>{_forecast(ahead_s)}. "
        f"Plan <code>{plan_hash(plan)}</code></p></header>",
        _summary(plan),
        _approve(command),
        _notes(lacks),
        _fills(load, plan),
        _flow(load, plan),
        _moves(plan),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>"
        f"<body><main>{''.join(sections)}</main></body></html>\n"
    )


def _forecast(ahead_s: float) -> str:
    return f", with sizes as forecast for {ahead_s / 3600:g} hours later" if ahead_s else ""


def human_bytes(count: float) -> str:
    """Bytes with a binary unit, three digits at most."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024 or unit == "TiB":
            return f"{count:.0f} {unit}" if unit == "B" or abs(count) >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")


def human_time(seconds: float) -> str:
    """In minutes, or in hours and minutes from 2 h on."""
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _summary(plan: Plan) -> str:
    quality, bounds = plan.quality, plan.bounds
    assert quality is not None
    assert bounds is not None
    before, after = quality.before, quality.after
    seconds = quality.expected_seconds
    duration = "not known: no throttle" if seconds is None else human_time(seconds)
    racks = [("Partitions that come on more racks", str(quality.on_more_racks))] if quality.on_more_racks else []
    levels = [
        ("Fullest directory", f"{before.highest:.1%}", f"{after.highest:.1%}"),
        ("Emptiest directory", f"{before.lowest:.1%}", f"{after.lowest:.1%}"),
        ("Spread", f"{before.spread:.1%}", f"{after.spread:.1%}"),
        ("Coefficient of variation", f"{before.coefficient_of_variation:.3f}", f"{after.coefficient_of_variation:.3f}"),
        ("Directories out of band", str(before.out_of_band), str(after.out_of_band)),
    ]
    costs = [
        ("Partitions that change", str(quality.partitions)),
        *racks,
        *_later(quality),
        ("Bytes over the network", human_bytes(quality.bytes_network)),
        ("Bytes between disks", human_bytes(quality.bytes_disk)),
        ("No plan that levels needs fewer than", human_bytes(bounds.bytes_total)),
        ("Changes of preferred leader", str(quality.leader_changes)),
        ("Highest fill while copies exist", f"{quality.highest_transient:.1%}"),
        ("Waves", str(quality.waves)),
        ("Expected duration", duration),
    ]
    body = "".join(f'<tr><th scope="row">{n}</th><td>{b}</td><td>{a}</td></tr>' for n, b, a in levels)
    cost = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in costs)
    return (
        '<section aria-labelledby="summary"><h2 id="summary">What it brings and costs</h2>'
        '<div class="columns"><table><caption>Fill levels</caption><thead><tr><th scope="col">Measure</th>'
        f'<th scope="col">Before</th><th scope="col">After</th></tr></thead><tbody>{body}</tbody></table>'
        f"<dl>{cost}</dl></div></section>"
    )


def _later(quality: Quality) -> list[tuple[str, str]]:
    """Rows for a plan that was cut off at `max_moves`."""
    if quality.aim is None:
        return []
    return [
        ("Partitions left for later plans", str(quality.to_follow)),
        ("Fullest directory after all of them", f"{quality.aim.highest:.1%}"),
    ]


def _approve(command: str | None) -> str:
    if command is None:
        text = "<p>There is nothing to approve: this plan was made to be looked at and is not in Kubernetes.</p>"
    else:
        text = f"<p>Exactly this plan runs, and only once this is done:</p><pre tabindex='0'>{escape(command)}</pre>"
    return f'<section aria-labelledby="approve"><h2 id="approve">Approve</h2>{text}</section>'


def _notes(lacks: Sequence[str]) -> str:
    if not lacks:
        return ""
    items = "".join(f"<li>{escape(text)}</li>" for text in lacks)
    return f'<section aria-labelledby="notes"><h2 id="notes">What was not known</h2><ul>{items}</ul></section>'


def _fills(load: ClusterLoad, plan: Plan) -> str:
    before, after = directory_fills(load, plan)
    rows = []
    named = {index: load.directory_name(index) for index in _most_changed(before, after)}
    for index, (broker, path) in sorted(named.items(), key=lambda row: (row[1][0], natural(row[1][1]))):
        rows.append(
            f'<tr><th scope="row">Broker {broker}</th><td class="path">{escape(path)}</td>'
            f"<td>{_bar(before[index], 'before')}</td><td>{_bar(after[index], 'after')}</td></tr>"
        )
    note = "" if len(rows) == before.size else f"<p>The {len(rows)} directories that change most, of {before.size}.</p>"
    return (
        '<section aria-labelledby="fills"><h2 id="fills">Directories before and after</h2>'
        f'{note}<div class="scroll" role="region" aria-labelledby="fills" tabindex="0"><table class="wide fills">'
        '<caption>Fill level of each directory</caption><thead><tr><th scope="col">Broker</th>'
        '<th scope="col">Directory</th><th scope="col">Before</th><th scope="col">After</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div></section>"
    )


def directory_fills(load: ClusterLoad, plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """Fill of every directory before and after the plan."""
    index_of = load.directory_index()
    change = np.zeros(load.directories.total.size)
    for source, target, size in _copies(plan):
        if source in index_of:
            change[index_of[source]] -= size
        if target in index_of:
            change[index_of[target]] += size
    total = load.directories.total
    return load.directories.used / total, (load.directories.used + change) / total


def _copies(plan: Plan) -> list[tuple[tuple[int, str], tuple[int, str], int]]:
    """(from, to, bytes) of each replica that moves; if several of a partition do, they share its bytes evenly."""
    found = []
    for move in plan.moves:
        before, after = move.from_.as_pairs(), move.to.as_pairs()
        own = [(broker, path) for broker, path in after.items() if broker in before and before[broker] != path]
        arriving = [(broker, path) for broker, path in after.items() if broker not in before]
        leaving = [(broker, path) for broker, path in before.items() if broker not in after]
        for broker, path in own:
            found.append(((broker, before[broker]), (broker, path), move.bytes_disk // len(own)))
        for source, target in zip(leaving, arriving, strict=False):
            found.append((source, target, move.bytes_network // len(arriving)))
    return found


def _most_changed(before: np.ndarray, after: np.ndarray) -> list[int]:
    """Indexes of directories, those that change most first; if there are not many, all of them in the order given."""
    if before.size <= MAX_BARS:
        return list(range(before.size))
    return [int(index) for index in np.argsort(-np.abs(after - before), kind="stable")[:MAX_BARS]]


def _bar(fill: float, kind: str) -> str:
    width = max(0.0, min(1.0, fill)) * 100
    return (
        f'<span class="fill"><svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="track" width="100" height="10"/><rect class="{kind}" width="{width:.1f}" height="10"/></svg>'
        f"<span>{fill:.1%}</span></span>"
    )


def _flow(load: ClusterLoad, plan: Plan) -> str:
    flows: Counter[tuple[str, str]] = Counter()
    few = load.directories.total.size <= MAX_FLOW_NAMES
    for source, target, size in _copies(plan):
        names = (
            (f"{source[0]}:{source[1]}", f"{target[0]}:{target[1]}")
            if few
            else (f"broker {source[0]}", f"broker {target[0]}")
        )
        flows[names] += size
    if not flows:
        return ""
    rows = "".join(
        f'<tr><th scope="row" class="path">{escape(a)}</th><td class="path">{escape(b)}</td>'
        f'<td class="number">{human_bytes(size)}</td></tr>'
        for (a, b), size in flows.most_common(40)
    )
    return (
        '<section aria-labelledby="flow"><h2 id="flow">Where the bytes go</h2>'
        '<div class="across" role="region" aria-labelledby="flow" tabindex="0">'
        f"{flow_svg(flows, human_bytes)}</div>"
        "<details><summary>As a table</summary><table><caption>Bytes from and to</caption><thead><tr>"
        '<th scope="col">From</th><th scope="col">To</th><th scope="col">Bytes</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></details></section>"
    )


def _moves(plan: Plan) -> str:
    largest = sorted(plan.moves, key=lambda move: (-(move.bytes_network + move.bytes_disk), move.topic, move.partition))
    rows = "".join(_move_row(move) for move in largest[:MAX_ROWS])
    note = f"<p>The {MAX_ROWS} largest of {len(plan.moves)}.</p>" if len(plan.moves) > MAX_ROWS else ""
    return (
        f'<section aria-labelledby="moves"><h2 id="moves">Moves</h2>{note}'
        '<div class="scroll" role="region" aria-labelledby="moves" tabindex="0"><table class="wide">'
        '<caption>Every partition that changes, largest first</caption><thead><tr><th scope="col">Partition</th>'
        '<th scope="col">From</th><th scope="col">To</th><th scope="col">Bytes</th><th scope="col">Wave</th></tr>'
        "</thead>"
        f"<tbody>{rows}</tbody></table></div></section>"
    )


def _move_row(move: Move) -> str:
    before, after = move.from_.as_pairs(), move.to.as_pairs()
    gone = [f"{b}:{path}" for b, path in before.items() if after.get(b) != path]
    come = [f"{b}:{path}" for b, path in after.items() if before.get(b) != path]
    if not come:
        gone, come = [f"leader {move.from_.replicas[0]}"], [f"leader {move.to.replicas[0]}"]
    size = human_bytes(move.bytes_network + move.bytes_disk)
    return (
        f'<tr><th scope="row">{escape(move.topic)}-{move.partition}</th><td class="path">{escape(", ".join(gone))}</td>'
        f'<td class="path">{escape(", ".join(come))}</td><td class="number">{size}</td><td>{move.wave}</td></tr>'
    )
