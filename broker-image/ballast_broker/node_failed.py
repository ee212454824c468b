"""What ends a node."""

from __future__ import annotations


class NodeFailed(Exception):
    """The node cannot go on; the text says why."""
