"""The exception that ends a node."""

from __future__ import annotations


class NodeFailed(Exception):
    """The node cannot go on; the message says why."""
