"""Checks topic names by the controller's rule, as a predicate or with the reason."""

from __future__ import annotations

from ballast_broker.controller.commands.topic_names import check_name
from ballast_wire.errors import ApiError


def is_legal(name: str) -> bool:
    return refusal(name) is None


def refusal(name: str) -> str | None:
    """The reason why the name is illegal, in Kafka's words; None for a legal one."""
    try:
        check_name(name)
    except ApiError as error:
        return error.message
    return None
