"""What somebody may have meant by a word that does not exist."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def meant(word: str, known: Iterable[str]) -> str:
    """A question to append to a refusal, or an empty string if nothing is near."""
    near = get_close_matches(word, list(known), n=1)
    return f" Did you mean {near[0]}?" if near else ""
