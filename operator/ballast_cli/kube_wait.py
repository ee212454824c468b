"""Parses what `wait` waits for, and waits for it."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from ballast_cli import CommandError
from ballast_cli.kube_api import KubeApi, Obj, Refused
from ballast_local import jsonpath

POLL_SECONDS = 0.2
FORMS = "condition=NAME, condition=NAME=VALUE, jsonpath='{.PATH}', jsonpath='{.PATH}'=VALUE or delete"


class TimedOutError(CommandError):
    """The wait timed out; its exit code differs from that of an invalid command, as kubectl's does."""

    exit_code = 1


@dataclass(frozen=True)
class Goal:
    named: str
    met: Callable[[Obj], bool]
    deletion: bool = False


DELETION = Goal("its deletion", lambda _: False, deletion=True)


def goal_of(text: str) -> Goal:
    """Parse the value of --for."""
    kind, _, rest = text.partition("=")
    if text == "delete":
        return DELETION
    if kind == "condition" and rest:
        name, _, value = rest.partition("=")
        return condition(name, value or "True")
    if kind == "jsonpath" and rest:
        try:
            return _value(rest)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
    raise argparse.ArgumentTypeError(f"{text!r} is not {FORMS}")


def condition(name: str, value: str) -> Goal:
    def met(obj: Obj) -> bool:
        for one in obj.get("status", {}).get("conditions") or []:
            stale = one.get("observedGeneration", 0) and one["observedGeneration"] < obj["metadata"].get(
                "generation", 0
            )
            if one["type"].lower() == name.lower() and one["status"].lower() == value.lower() and not stale:
                return True
        return False

    return Goal(f"the condition {name}", met)


def _value(text: str) -> Goal:
    """Parse PATH or PATH=VALUE; within braces a path may contain an equals sign."""
    match = re.fullmatch(r"(\{.*\}|[^{=]+)(?:(=)(.*))?", text, re.DOTALL)
    if match is None:
        raise ValueError(f"{text!r} is no JSONPath such as '{{.status.phase}}'")
    path, wanted = jsonpath.path(match[1]), (match[3] or "").strip("'\"")
    if match[2] and not wanted:
        raise ValueError(f"there is no value behind the equal sign of {text!r}")

    def met(obj: Obj) -> bool:
        found = [one for one in path.find(obj) if one is not None]
        if len(found) > 1:
            raise CommandError(f"{match[1]} is more than one value.")
        if not match[2] or not found:
            return bool(found)
        if isinstance(found[0], dict | list):
            raise CommandError(f"{match[1]} is no single value but an object or a list.")
        return jsonpath.shown(found[0]) == wanted

    return Goal(text, met)


def until(api: KubeApi, path: str, goal: Goal, seconds: float, shown: str, uid: str = "") -> None:
    """Return once the goal is met. A deletion is also met if another object (with a different uid) has the name."""
    deadline = time.monotonic() + seconds
    while not _met(api, path, goal, uid):
        if time.monotonic() >= deadline:
            raise TimedOutError(f"timed out waiting for {goal.named} on {shown}.")
        time.sleep(POLL_SECONDS)


def _met(api: KubeApi, path: str, goal: Goal, uid: str) -> bool:
    try:
        found = api.call("GET", path)
    except Refused as refusal:
        if goal.deletion and refusal.code == 404:
            return True
        raise
    if goal.deletion:
        return bool(uid) and found["metadata"]["uid"] != uid
    return goal.met(found)


def seconds_of(text: str) -> float:
    """Parse a duration as kubectl does; 0 needs no unit."""
    match = re.fullmatch(r"0|(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?", text)
    if not text or match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration such as 30s or 2m")
    hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + seconds
