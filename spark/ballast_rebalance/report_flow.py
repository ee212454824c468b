"""Draws the flow of bytes as an inline SVG: sources left, targets right, bands as thick as their bytes. PURE."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from html import escape

MAX_FLOWS = 40
BANDS_PX = 340
# The width of a letter in the monospace font that the style sheet has for labels.
LETTER_PX = 7.9
MAX_LETTERS = 40
GAP_PX = 8
ROW_PX = 26
MAX_BAND_PX = 18.0


def flow_svg(flows: Counter[tuple[str, str]], human: Callable[[float], str]) -> str:
    """The largest flows; what is left out is said in the caption."""
    shown = dict(flows.most_common(MAX_FLOWS))
    sources = sorted({source for source, _ in shown}, key=natural)
    targets = sorted({target for _, target in shown}, key=natural)
    begin, beside = _room(sources), _room(targets)
    end = begin + BANDS_PX
    height = ROW_PX * max(len(sources), len(targets)) + 10
    largest = max(shown.values()) or 1
    left = {name: _y(index) for index, name in enumerate(sources)}
    right = {name: _y(index) for index, name in enumerate(targets)}
    bands = "".join(
        _band((begin, left[a]), (end, right[b]), f"{a} to {b}: {human(size)}", size / largest)
        for (a, b), size in shown.items()
    )
    labels = "".join(_label(name, begin - GAP_PX, y, "end") for name, y in left.items())
    labels += "".join(_label(name, end + GAP_PX, y, "start") for name, y in right.items())
    hidden = sum(flows.values()) - sum(shown.values())
    note = f"<p>Smaller flows, {human(hidden)} together, are left out.</p>" if hidden > 0 else ""
    summary = escape(f"{len(shown)} flows, together {human(sum(shown.values()))}")
    return (
        f'<svg class="flow" width="{end + beside}" height="{height}" role="img" aria-label="Flow of bytes: {summary}">'
        f"{bands}{labels}</svg>{note}"
    )


def _room(names: Iterable[str]) -> int:
    """Width for the longest name, as far as it is shown."""
    return GAP_PX + math.ceil(LETTER_PX * max(min(len(name), MAX_LETTERS) for name in names))


def _label(name: str, x: int, y: int, anchor: str) -> str:
    """A long path is cut at the front: its end says which disk it is."""
    shown = name if len(name) <= MAX_LETTERS else f"…{name[1 - MAX_LETTERS :]}"
    return f'<text x="{x}" y="{y + 4}" text-anchor="{anchor}">{escape(shown)}</text>'


def _band(begin: tuple[int, int], end: tuple[int, int], title: str, share: float) -> str:
    width, middle = max(1.0, MAX_BAND_PX * share), (begin[0] + end[0]) // 2
    path = f"M{begin[0]} {begin[1]}C{middle} {begin[1]} {middle} {end[1]} {end[0]} {end[1]}"
    return f'<path d="{path}" stroke-width="{width:.1f}"><title>{escape(title)}</title></path>'


def _y(index: int) -> int:
    return 5 + ROW_PX // 2 + index * ROW_PX


def natural(name: str) -> list[tuple[int, str]]:
    """A sort key that orders numbers in a name by value: disk-2 before disk-10."""
    return [(int(digits or -1), text) for digits, text in re.findall(r"(\d+)|(\D+)", name)]
