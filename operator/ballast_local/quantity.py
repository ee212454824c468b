"""Kubernetes quantities: text → number. PURE."""

import re
from fractions import Fraction
from typing import Any

_SUFFIXES: dict[str, Fraction] = {
    "": Fraction(1), "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000),
    "k": Fraction(10**3), "M": Fraction(10**6), "G": Fraction(10**9), "T": Fraction(10**12), "P": Fraction(10**15),
    "E": Fraction(10**18), "Ki": Fraction(2**10), "Mi": Fraction(2**20), "Gi": Fraction(2**30), "Ti": Fraction(2**40),
    "Pi": Fraction(2**50), "Ei": Fraction(2**60),
}  # fmt: skip
_QUANTITY = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+))(?:[eE]([+-]?\d{1,3})|([numkMGTPE]|[KMGTPE]i)?)\Z")


def parse_quantity(text: Any) -> Fraction:
    """Parse a quantity into the exact number; raises ValueError if it is none."""
    match = _QUANTITY.match(str(text))
    if match is None:
        raise ValueError(f"{text!r} is not a quantity")
    number = Fraction(match[1])
    if match[2]:
        return number * Fraction(10) ** int(match[2])
    return number * _SUFFIXES[match[3] or ""]


def is_quantity(text: Any) -> bool:
    return _QUANTITY.match(str(text)) is not None
