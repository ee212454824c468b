"""Checks where an embedded Kubernetes can keep its data. Can be imported before the rest is installed."""

import os
from pathlib import Path

# SQLite limits a file's path, with its own suffix and the final NUL, to 512 bytes; ours is objects.db in the folder.
LONGEST_BYTES = 493
_UNUSABLE = frozenset(",\\'\"\n\r\t")


def why_unusable(path: Path) -> str:
    """Why the folder cannot be used; empty if it can."""
    if os.path.exists(path) and not os.path.isdir(path):  # unlike Path's, these do not raise PermissionError
        return "it is not a directory"
    name = str(path.resolve())
    if (length := len(os.fsencode(name))) > LONGEST_BYTES:
        return f"its path has {length} bytes, and the store of objects takes {LONGEST_BYTES}; choose a shorter one"
    found = sorted(_UNUSABLE & set(name))
    # In a list of log directories such a path would be split into other directories, which belong to no claim.
    said = " ".join(map(repr, found))
    try:
        name.encode()
    except UnicodeEncodeError:  # from invalid bytes, or from a locale without these characters
        said = "letters that are no UTF-8"
    return f"a path with {said} does not survive in the lists and texts of pods; choose another" if said else ""
