"""Argument types shared by several commands; argparse reports the ArgumentTypeError of an invalid value."""

from __future__ import annotations

import math
import re
from argparse import ArgumentTypeError
from pathlib import Path

from ballast_local.folders import why_unusable
from ballast_operator.model.quantity import parse_quantity

ADDRESSES = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s,:]+):([0-9]{1,5})")


def addresses(text: str) -> str:
    """One HOST:PORT, or several separated by commas."""
    for one in text.split(","):
        found = ADDRESSES.fullmatch(one)
        if found is None or not 0 < int(found[2]) < 65536:
            raise ArgumentTypeError(f"{one!r} is not a broker address such as localhost:9092")
    return text


def port(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) < 65536:
        raise ArgumentTypeError(f"{text!r} is not a port: 1 to 65535, or 0 for any")
    return int(text)


def folder(text: str) -> Path:
    """Reject an empty name, as from an unset variable: Path would take it for the current directory."""
    if not text:
        raise ArgumentTypeError("it is empty; the current directory is .")
    return Path(text)


def pods_folder(text: str) -> Path:
    """A folder in which an embedded Kubernetes can keep its data; an unsuitable one is refused before installation."""
    found = folder(text)
    if why := why_unusable(found):
        raise ArgumentTypeError(f"{text}: {why}")
    return found


def at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return int(text)


def bytes_a_second(text: str) -> int:
    """A plain number of bytes, as Apache Kafka's tool takes it, or a quantity such as 50Mi."""
    try:
        found = parse_quantity(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
    if found < 1 or text.endswith(("n", "u", "m")):  # fractions of a byte: 50m is a typo for 50M
        raise ArgumentTypeError(f"{text!r} is not a limit: nothing would ever arrive")
    return found


def minutes(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise ArgumentTypeError(f"{text!r} is not a number of minutes above 0")
    return number


def identifiers(text: str) -> list[int]:
    """Broker ids, separated by commas."""
    if not re.fullmatch(r"[0-9]+(,[0-9]+)*", text):
        raise ArgumentTypeError(f"{text!r} is not a list of broker ids such as 0,1,2")
    return [int(one) for one in text.split(",")]
