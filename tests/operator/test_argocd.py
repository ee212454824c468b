"""Argo CD's health of our objects, by the Lua that is shipped, run by a real Lua."""

from typing import Any

import pytest
from e2e.kubernetes import argocd

pytestmark = [
    pytest.mark.spec("OPR-02"),
    pytest.mark.skipif(argocd.find_lua() is None, reason="there is no Lua here"),
]


def health(generation: int = 1, **status: Any) -> tuple[str, str]:
    """(status, message) for an object."""
    return argocd.health({"metadata": {"generation": generation}, **({"status": status} if status else {})})


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
        (ready("False", "NodeLost"), "Degraded"),
        (ready("False", "PodHeld"), "Degraded"),
        (ready("False", "RackUnknown"), "Degraded"),
        (ready("False", "PodsMissing"), "Degraded"),
        (ready("False", "PodsNotStarting"), "Degraded"),
        (ready("False", "KubernetesRefused"), "Degraded"),
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


def test_every_reason_of_the_tables_has_the_health_that_its_condition_says() -> None:
    from ballast_operator.status import CLUSTER, REASSIGNMENT, SHARED, TOPIC

    possible = {
        "True": {"Healthy"},
        "Unknown": {"Unknown", "Suspended", "Degraded"},
        "False": {"Progressing", "Suspended", "Degraded"},
    }
    seen = set()
    for table in (SHARED, TOPIC, REASSIGNMENT, CLUSTER):
        for reason in table.values():
            conditions = ready(reason.ready, reason.name, stalled=reason.stalled)
            found, message = health(observedGeneration=1, conditions=conditions)
            assert message == "words"
            assert found in possible[reason.ready], reason.name
            seen.add(found)
    assert seen == {"Healthy", "Unknown", "Suspended", "Degraded", "Progressing"}
