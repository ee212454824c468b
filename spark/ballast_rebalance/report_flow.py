"""The flow of bytes as an inline SVG: sources left, targets right, bands as thick as their bytes. PURE."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from html import escape

MAX_FLOWS = 40
WIDTH = 640
LEFT, RIGHT = 150, 490
ROW_PX = 26
MAX_BAND_PX = 18.0


def flow_svg(flows: Counter[tuple[str, str]], human: Callable[[float], str]) -> str:
    """The largest flows; what is left out is said in the caption."""
    shown = dict(flows.most_common(MAX_FLOWS))
    sources = sorted({source for source, _ in shown}, key=_natural)
    targets = sorted({target for _, target in shown}, key=_natural)
    height = ROW_PX * max(len(sources), len(targets)) + 10
    largest = max(shown.values()) or 1
    left = {name: _y(index) for index, name in enumerate(sources)}
    right = {name: _y(index) for index, name in enumerate(targets)}
    bands = "".join(
        _band((left[a], right[b]), f"{a} to {b}: {human(size)}", size / largest) for (a, b), size in shown.items()
    )
    labels = "".join(f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{escape(n)}</text>' for n, y in left.items())
    labels += "".join(f'<text x="{RIGHT + 8}" y="{y + 4}">{escape(n)}</text>' for n, y in right.items())
    hidden = sum(flows.values()) - sum(shown.values())
    note = f"<p>Smaller flows, {human(hidden)} together, are left out.</p>" if hidden > 0 else ""
    summary = escape(f"{len(shown)} flows, together {human(sum(shown.values()))}")
    return (
        f'<svg class="flow" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="Flow of bytes: {summary}">'
        f"{bands}{labels}</svg>{note}"
    )


def _band(ends: tuple[int, int], title: str, share: float) -> str:
    width, middle = max(1.0, MAX_BAND_PX * share), (LEFT + RIGHT) // 2
    path = f"M{LEFT} {ends[0]}C{middle} {ends[0]} {middle} {ends[1]} {RIGHT} {ends[1]}"
    return f'<path d="{path}" stroke-width="{width:.1f}"><title>{escape(title)}</title></path>'


def _y(index: int) -> int:
    return 5 + ROW_PX // 2 + index * ROW_PX


def _natural(name: str) -> list[tuple[int, str]]:
    """Numbers in a name by their value: disk-2 before disk-10."""
    return [(int(digits or -1), text) for digits, text in re.findall(r"(\d+)|(\D+)", name)]
