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
    try:
        return re.compile(text)
    except (OverflowError, RecursionError) as fault:  # a{99999999999}, or thousands of groups in each other
        raise re.error(str(fault)) from None
