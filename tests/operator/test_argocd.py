"""Argo CD's health of our objects, by the Lua that is shipped, run by a real Lua."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LUA = shutil.which("lua5.4") or shutil.which("lua")
pytestmark = [pytest.mark.spec("OPR-02"), pytest.mark.skipif(LUA is None, reason="there is no Lua here")]


def health(generation: int = 1, **status: Any) -> tuple[str, str]:
    """(status, message) for an object."""
    check = (ROOT / "manifests" / "argocd" / "health.lua").read_text()
    subject = _lua({"metadata": {"generation": generation}, **({"status": status} if status else {})})
    script = (
        f"obj = {subject}\nlocal function check()\n{check}\nend\nlocal h = check()\nprint(h.status)\nprint(h.message)"
    )
    done = subprocess.run([str(LUA), "-"], input=script, capture_output=True, text=True, check=True, timeout=10)
    first, _, second = done.stdout.strip().partition("\n")
    return first, second


def _lua(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"[{json.dumps(key)}] = {_lua(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "{" + ", ".join(_lua(item) for item in value) + "}"
    return json.dumps(value)


def ready(status: str, reason: str, message: str = "words", stalled: bool = False) -> list[dict[str, str]]:
    found = [{"type": "Ready", "status": status, "reason": reason, "message": message}]
    return [*found, {"type": "Stalled", "status": "True", "reason": reason, "message": message}] if stalled else found


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        (ready("True", "Ready"), "Healthy"),
        (ready("False", "Creating"), "Progressing"),
        (ready("False", "InvalidConfig", stalled=True), "Degraded"),
        (ready("False", "BrokersOffline"), "Degraded"),
        (ready("False", "AwaitingApproval"), "Suspended"),
        (ready("Unknown", "Paused"), "Suspended"),
        (ready("Unknown", "ClusterUnreachable"), "Unknown"),
    ],
)
def test_health_follows_the_conditions_and_says_the_same(conditions: list[dict[str, str]], expected: str) -> None:
    assert health(observedGeneration=1, conditions=conditions) == (expected, "words")


def test_a_spec_that_was_not_seen_yet_is_progressing() -> None:
    assert health()[0] == "Progressing"
    assert health(generation=2, observedGeneration=1, conditions=ready("True", "Ready"))[0] == "Progressing"


def test_every_stalled_reason_of_the_table_is_degraded_and_never_progressing() -> None:
    from ballast_operator.status import CLUSTER, REASSIGNMENT, SHARED, TOPIC

    for table in (SHARED, TOPIC, REASSIGNMENT, CLUSTER):
        for reason in table.values():
            if reason.stalled:
                found = health(observedGeneration=1, conditions=ready(reason.ready, reason.name, stalled=True))
                assert found[0] == "Degraded", reason.name
