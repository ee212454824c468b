"""Conditions and the table of reasons."""

from pathlib import Path

import pytest

from ballast_operator.model.meta import Condition
from ballast_operator.status import (
    CLUSTER,
    REASSIGNMENT,
    SHARED,
    TOPIC,
    Reason,
    Verdict,
    conditions,
    difference,
    reasons_page,
)

ROOT = Path(__file__).parents[2]
READY = Verdict("Ready", "True", "fine")
STUCK = Verdict("InvalidConfig", "False", "no", stalled=True)


@pytest.mark.spec("OPR-02")
def test_ready_is_always_there_and_stalled_only_while_a_person_has_to_act() -> None:
    assert [(c.type, c.status) for c in conditions((), READY, 3, "t1")] == [("Ready", "True")]
    assert [(c.type, c.status) for c in conditions((), STUCK, 3, "t1")] == [("Ready", "False"), ("Stalled", "True")]


@pytest.mark.spec("OPR-02")
def test_the_transition_time_changes_only_with_the_status() -> None:
    first = conditions((), READY, 1, "t1")
    assert conditions(first, READY._replace(message="still"), 2, "t2")[0].last_transition_time == "t1"
    assert conditions(first, STUCK, 2, "t2")[0].last_transition_time == "t2"


@pytest.mark.spec("OPR-05")
def test_an_unchanged_verdict_makes_an_unchanged_status() -> None:
    first = conditions((), STUCK, 1, "t1")
    assert conditions(first, STUCK, 1, "t2") == first


def test_a_difference_is_a_merge_patch() -> None:
    before = {"a": 1, "b": {"c": 1, "d": 2}, "e": [1]}
    assert difference(before, before) == {}
    assert difference(before, {"a": 1, "b": {"c": 3}}) == {"b": {"c": 3, "d": None}, "e": None}


def test_the_page_of_reasons_is_what_the_table_says() -> None:
    page = (ROOT / "docs" / "reference" / "reasons.md").read_text()
    assert page == reasons_page(), "run: python -m ballast_operator.model.reference crds docs/reference"


@pytest.mark.parametrize("table", [SHARED, TOPIC, REASSIGNMENT, CLUSTER])
def test_a_reason_that_needs_a_person_says_what_to_do(table: dict[str, Reason]) -> None:
    silent = [r.name for r in table.values() if r.stalled and not r.advice]
    assert silent == []


def test_a_condition_has_no_default_for_what_it_says() -> None:
    assert Condition("Ready", "True", "r", "m").last_transition_time == ""
