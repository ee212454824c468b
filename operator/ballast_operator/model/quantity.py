"""Parses Kubernetes quantities ("50Mi"), and formats bytes, counts and durations for people. PURE."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import ROUND_CEILING, Decimal

# All suffixes that Kubernetes itself writes: `2.3Gi` comes back from it as `2469606195200m`.
_SUFFIX: dict[str, Decimal | int] = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "E": 10**18,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
    "Ei": 2**60,
}
_QUANTITY = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE]([-+]?[0-9]{1,2})|([numkMGTPE]|[KMGTPE]i)?)")


def parse_quantity(text: str) -> int:
    """The number of bytes, rounded up as Kubernetes does."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no quantity such as 50Mi")
    number = Decimal(match[1]) * (Decimal(10) ** int(match[2]) if match[2] else _SUFFIX[match[3] or ""])
    return int(number.to_integral_value(rounding=ROUND_CEILING))


def bytes_text(size_bytes: int) -> str:
    """1536 → 1.5Ki, with three significant digits at most."""
    value = float(size_bytes)
    for suffix in ("", "Ki", "Mi", "Gi", "Ti"):
        if value < 1000:
            return f"{value:.0f}{suffix}" if value >= 10 or not suffix else f"{value:.1f}{suffix}"
        value /= 1024
    return f"{value:.1f}Pi"


def counted(count: int, what: str) -> str:
    """1 partition, 2 partitions."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def some_of(names: Sequence[str], most: int) -> str:
    """a, b and 3 more."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def duration_text(seconds: int) -> str:
    """125 → 2m5s; at most two units."""
    minutes, second = divmod(max(0, seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    parts = [(days, "d"), (hour, "h"), (minute, "m"), (second, "s")]
    shown = [f"{amount}{unit}" for amount, unit in parts if amount]
    return "".join(shown[:2]) or "0s"
