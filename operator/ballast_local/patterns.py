"""Compiles the regular expressions of schemas and rules, which are Go's, with Python's `re`. PURE."""

import re
from functools import lru_cache

# an escaped character, a class, or a bare $
_PARTS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\$", re.DOTALL)
_MULTILINE = re.compile(r"(?<!\\)\(\?[a-zA-Z]*m")


@lru_cache(maxsize=1024)
def compile_pattern(text: str) -> re.Pattern[str]:
    """Raises re.error if it is no regular expression."""
    # Go's $ matches only at the end of the text, unless (?m) is set; Python's also matches before a final newline.
    if not _MULTILINE.search(text):
        text = _PARTS.sub(lambda part: r"\Z" if part[0] == "$" else part[0], text)
    # Go's \d, \w, \s and \b know ASCII alone; but (?i) is for all letters, and Python's flag for ASCII is for both.
    flags = re.ASCII if text.isascii() else re.NOFLAG
    try:
        return re.compile(text, flags)
    # a{99999999999}, thousands of groups in each other, or (?u)
    except (OverflowError, RecursionError, ValueError) as fault:
        raise re.error(str(fault)) from None
