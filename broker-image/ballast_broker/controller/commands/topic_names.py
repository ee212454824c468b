"""Validates topic names and detects colliding ones. PURE."""

from __future__ import annotations

import re

from ballast_broker.metadata.image import TopicsImage, collision_key
from ballast_wire.errors import ApiError, ErrorCode

METADATA_TOPIC = "__cluster_metadata"
MAX_LENGTH = 249
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def check_name(name: str) -> None:
    reason = None
    if not name:
        reason = "the empty string is not allowed"
    elif name in (".", ".."):
        reason = f"'{name}' is not allowed"
    elif len(name) > MAX_LENGTH:
        reason = f"the length of '{name}' is longer than the max allowed length {MAX_LENGTH}"
    elif _LEGAL.fullmatch(name) is None:
        reason = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    if reason is not None:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}")


def check_collision(topics: TopicsImage, name: str) -> None:
    key = collision_key(name)
    if key is None:
        return
    others = sorted(topics.names_by_collision_key.get(key, frozenset()) - {name})
    if others:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {others[0]}")
