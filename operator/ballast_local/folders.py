"""Where an embedded Kubernetes may keep everything. Told before the rest of it is loaded, or installed."""

import os
from pathlib import Path

# SQLite opens no file of which path, an ending of its own and a zero are more than 512 bytes; ours is objects.db in it.
LONGEST_BYTES = 493
_DISTURBING = frozenset(",\\'\"\n\r\t")


def disturbing(path: Path) -> str:
    """Why not there; empty where it may be."""
    if os.path.exists(path) and not os.path.isdir(path):  # which do not raise where one may not look
        return "it is no directory"
    name = str(path.resolve())
    if (length := len(os.fsencode(name))) > LONGEST_BYTES:
        return f"its path has {length} bytes, and the store of objects takes {LONGEST_BYTES}; choose a shorter one"
    found = sorted(_DISTURBING & set(name))
    # In a list of log directories a part of such a path would be another directory, which no claim keeps.
    said = " ".join(map(repr, found))
    try:
        name.encode()
    except UnicodeEncodeError:  # by its bytes, or by a locale that has no such letters
        said = "letters that are no UTF-8"
    return f"a path with {said} does not survive in the lists and texts of pods; choose another" if said else ""
