"""What a Reassignment does next: phases, approval, staleness, cancel, rollback."""

from dataclasses import replace
from typing import Any

import pytest
from tests.operator.making import NOW, move, reassignment, topic_view, view

from ballast_operator.model.kafka import DirectoryId, KafkaView, LogView, OngoingView
from ballast_operator.model.reassignment import Phase, Reassignment
from ballast_operator.plan.lifecycle import Goal, ReassignmentFacts, Step, goal_of, next_step, without_place
from ballast_operator.plan.moves import State
from ballast_operator.plan.stored import keep
from ballast_planner import Plan, Unplaced

MOVE = move(((0, "/a"), (1, "/a")), ((0, "/a"), (2, "/b")), network=100)
PLAN = keep(Plan((MOVE,)))
SOURCE = {("orders", 0, 0): LogView("/a", 100), ("orders", 0, 1): LogView("/a", 100)}
TARGET = {("orders", 0, 0): LogView("/a", 100), ("orders", 0, 2): LogView("/b", 100)}
AT_SOURCE = view({"orders": topic_view((0, 1))}, SOURCE)
AT_TARGET = view({"orders": topic_view((0, 2))}, TARGET)
MOVING = view({"orders": topic_view((0, 2, 1))}, SOURCE, {("orders", 0): OngoingView((0, 2, 1), (2,), (1,))})
ELSEWHERE = view({"orders": topic_view((1, 2))}, {})
STARTED = {"startedAt": NOW, "phase": "Running", "plan": {"hash": PLAN.hash}}
ROWS = [{"topic": "orders", "partition": 0, "replicas": [0, 2], "logDirs": ["/a", "/b"]}]


def step(subject: Reassignment, seen: KafkaView = AT_SOURCE, plan: Any = PLAN, **more: Any) -> Step:
    return next_step(ReassignmentFacts(subject, plan, seen, now=NOW, **more))


@pytest.mark.spec("OPR-33")
def test_an_automatic_plan_starts_and_holds_its_partitions_and_throttles() -> None:
    found = step(reassignment(drainBrokers=[1]))
    assert (found.phase, found.starts, found.claims, found.holds_throttles) == (Phase.RUNNING, True, True, True)


@pytest.mark.spec("OPR-32")
def test_with_required_approval_nothing_runs_before_exactly_this_hash_is_approved() -> None:
    waiting = step(reassignment(drainBrokers=[1], approval="Required"))
    assert (waiting.phase, waiting.starts, waiting.run) == (Phase.AWAITING_APPROVAL, False, False)
    assert PLAN.hash in waiting.verdict.message
    assert waiting.verdict.message.startswith("The plan moves 1 partition and ")
    other = step(reassignment(drainBrokers=[1], approval="Required", approvedPlan="0" * 64))
    assert other.phase is Phase.AWAITING_APPROVAL
    assert step(reassignment(drainBrokers=[1], approval="Required", approvedPlan=PLAN.hash)).starts
    assert step(reassignment(drainBrokers=[1], approval="Required", approvedPlan=f"sha256:{PLAN.hash}")).starts


@pytest.mark.spec("OPR-32")
def test_a_plan_with_another_hash_than_its_author_computed_does_not_run() -> None:
    found = step(reassignment(partitions=ROWS, planHash="0" * 64))
    assert (found.phase, found.verdict.reason, found.starts) == (Phase.STALE, "PlanHashDiffers", False)


@pytest.mark.spec("OPR-32")
def test_an_expired_plan_does_not_start() -> None:
    found = step(reassignment(partitions=ROWS, expiresAt="2026-01-01T00:00:00Z"))
    assert (found.phase, found.verdict.reason, found.starts) == (Phase.STALE, "Expired", False)
    assert step(reassignment(partitions=ROWS, expiresAt="2027-01-01T00:00:00Z")).starts


@pytest.mark.spec("OPR-32")
def test_after_expiry_what_moves_goes_on_and_nothing_else_starts() -> None:
    subject = reassignment(partitions=ROWS, expiresAt="2026-01-01T00:00:00Z", status=STARTED)
    assert step(subject, MOVING).phase is Phase.RUNNING
    assert not step(subject, MOVING).run
    assert step(subject, AT_SOURCE).phase is Phase.STALE


@pytest.mark.spec("OPR-32")
def test_a_stale_row_stops_an_explicit_plan_and_replans_a_generated_one() -> None:
    explicit = step(reassignment(partitions=ROWS), ELSEWHERE)
    assert (explicit.phase, explicit.starts) == (Phase.STALE, False)
    assert "orders-0" in explicit.verdict.message
    assert step(reassignment(drainBrokers=[1]), ELSEWHERE).replan


@pytest.mark.spec("OPR-32", "OPR-33")
def test_rows_that_have_waited_for_others_are_planned_anew_when_these_have_moved_the_partitions() -> None:
    """It had waited for what could only make it Stale: "second" never ran after "first"."""
    waits = {"phase": "Waiting", "waitingFor": ["first"], "observedGeneration": 1}
    subject = reassignment(partitions=ROWS, status=waits)
    assert step(subject, ELSEWHERE).replan
    held = step(subject, ELSEWHERE, conflicts=("first",))
    assert (held.phase, held.waits_for, held.replan) == (Phase.WAITING, ("first",), False)
    planned_meanwhile = step(reassignment(partitions=ROWS), ELSEWHERE, conflicts=("first",))
    assert planned_meanwhile.phase is Phase.WAITING
    # Nobody moved them, or it waits for something else than others.
    assert step(subject).starts
    refused = reassignment(partitions=ROWS, status=waits | {"waitingFor": []})
    assert step(refused, ELSEWHERE).phase is Phase.STALE
    # What somebody approved, or worked out, is that plan and no other.
    approved = reassignment(partitions=ROWS, status=waits, approval="Required", approvedPlan=PLAN.hash)
    assert step(approved, ELSEWHERE).replan
    other = keep(Plan((move(((1, "/a"), (2, "/b")), ((0, "/a"), (2, "/b"))),)))
    planned = {"phase": "Planning", "observedGeneration": 1}
    again = reassignment(partitions=ROWS, status=planned, approval="Required", approvedPlan=PLAN.hash)
    assert step(again, ELSEWHERE, other).phase is Phase.AWAITING_APPROVAL
    hashed = reassignment(partitions=ROWS, status=planned, planHash=PLAN.hash)
    assert step(hashed, ELSEWHERE, other).verdict.reason == "PlanHashDiffers"


@pytest.mark.spec("OPR-32")
def test_an_explicit_plan_that_went_stale_stays_so_until_its_spec_changes() -> None:
    stale = {"phase": "Stale", "observedGeneration": 1}
    assert step(reassignment(partitions=ROWS, status=stale)).phase is Phase.STALE
    assert step(reassignment(partitions=ROWS, status={**stale, "observedGeneration": 0})).starts
    moved_something = reassignment(partitions=ROWS, status={**STARTED, **stale})
    assert goal_of(moved_something) is Goal.STAY


@pytest.mark.spec("OPR-33")
def test_it_waits_for_another_one_that_holds_its_partitions_and_names_it() -> None:
    found = step(reassignment(partitions=ROWS), conflicts=("nightly",))
    assert (found.phase, found.waits_for, found.starts) == (Phase.WAITING, ("nightly",), False)


@pytest.mark.spec("OPR-33")
def test_paused_starts_nothing_and_lets_go_on_what_moves() -> None:
    assert step(reassignment(partitions=ROWS, paused=True)).phase is Phase.PAUSED
    running = step(reassignment(partitions=ROWS, paused=True, status=STARTED), MOVING)
    assert (running.phase, running.run, running.stop, running.holds_throttles) == (Phase.PAUSED, False, (), True)


@pytest.mark.spec("OPR-33")
def test_all_arrived_is_verified_and_ends_only_when_the_throttles_are_gone() -> None:
    subject = reassignment(partitions=ROWS, status=STARTED)
    held = step(subject, AT_TARGET, throttles_held=True)
    assert (held.phase, held.holds_throttles) == (Phase.VERIFYING, False)
    assert step(subject, AT_TARGET).phase is Phase.SUCCEEDED
    lagging = view({"orders": topic_view((0, 2), isr={0: (0,)})}, TARGET)
    verifying = step(subject, lagging)
    assert (verifying.phase, verifying.holds_throttles) == (Phase.VERIFYING, True)


@pytest.mark.spec("OPR-02", "OPR-33")
def test_cancel_stops_what_moves_and_leaves_the_rest() -> None:
    """It was wanted: GitOps took it for a failure for ever."""
    subject = reassignment(partitions=ROWS, cancel=True, status=STARTED)
    assert list(step(subject, MOVING).stop) == [MOVE]
    ended = step(subject, AT_TARGET)
    assert (ended.phase, ended.verdict.reason) == (Phase.CANCELLED, "Cancelled")
    assert "1 of 1" in ended.verdict.message
    assert (ended.verdict.ready, ended.verdict.stalled) == ("True", False)


@pytest.mark.spec("OPR-33")
def test_deleting_a_running_one_cancels_it_and_deleting_an_ended_one_does_nothing() -> None:
    meta = {"deletionTimestamp": NOW, "finalizers": ["ballast.dev/finalizer"]}
    assert list(step(reassignment(partitions=ROWS, status=STARTED, meta=meta), MOVING).stop) == [MOVE]
    ended = reassignment(partitions=ROWS, onCancel="Rollback", status={**STARTED, "phase": "Succeeded"}, meta=meta)
    assert goal_of(ended) is Goal.STAY


@pytest.mark.spec("OPR-33")
def test_cancel_with_rollback_stops_first_and_then_goes_back() -> None:
    subject = reassignment(partitions=ROWS, cancel=True, onCancel="Rollback", status=STARTED)
    assert list(step(subject, MOVING).stop) == [MOVE]
    back = step(subject, AT_TARGET)
    assert (back.phase, back.run) == (Phase.RUNNING, True)
    assert back.states[0].move.to == MOVE.from_
    assert back.states[0].state is State.PENDING
    assert step(subject, AT_SOURCE).phase is Phase.ROLLED_BACK


@pytest.mark.spec("OPR-33")
def test_rollback_after_the_end_puts_back_what_was() -> None:
    subject = reassignment(partitions=ROWS, rollback=True, status={**STARTED, "phase": "Succeeded"})
    assert step(subject, AT_TARGET).verdict.reason == "RollingBack"
    turning = view({"orders": topic_view((0, 1, 2))}, SOURCE, {("orders", 0): OngoingView((0, 1, 2), (1,), (2,))})
    running = step(subject, turning)
    assert (running.stop, running.run) == ((), True)
    assert step(subject, AT_SOURCE).phase is Phase.ROLLED_BACK
    assert goal_of(reassignment(rollback=True, partitions=ROWS, status={**STARTED, "phase": "RolledBack"})) is Goal.STAY


@pytest.mark.spec("OPR-33")
def test_what_is_to_be_put_back_before_it_began_does_not_begin() -> None:
    """Git keeps `rollback: true`: an object that is made anew from it has nothing to put back."""
    anew = reassignment(partitions=ROWS, rollback=True)
    assert goal_of(anew) is Goal.BACK
    found = step(anew)
    assert (found.phase, found.verdict.reason, found.starts) == (Phase.ROLLED_BACK, "RolledBack", False)
    waiting = reassignment(drainBrokers=[1], rollback=True, status={"phase": "AwaitingApproval"})
    assert step(waiting).phase is Phase.ROLLED_BACK
    nothing = reassignment(partitions=ROWS, rollback=True, status={"phase": "Succeeded"})
    assert goal_of(nothing) is Goal.STAY


@pytest.mark.spec("OPR-32")
def test_a_rollback_does_not_touch_what_was_moved_on_since() -> None:
    subject = reassignment(partitions=ROWS, rollback=True, status={**STARTED, "phase": "Succeeded"})
    found = step(subject, ELSEWHERE)
    assert (found.phase, found.run) == (Phase.FAILED, False)


def test_cancelled_before_it_began_it_has_nothing_to_put_back() -> None:
    assert step(reassignment(partitions=ROWS, cancel=True, onCancel="Rollback")).phase is Phase.CANCELLED


def test_a_plan_without_moves_is_at_its_end() -> None:
    found = step(reassignment(drainBrokers=[1], approval="Required"), plan=keep(Plan(())))
    assert (found.phase, found.verdict.reason) == (Phase.SUCCEEDED, "NothingToMove")


def test_replicas_that_found_no_place_are_not_called_a_success() -> None:
    plan = keep(Plan((MOVE,), unplaced=(Unplaced("orders", 7, 1, "no room"),)))
    found = step(reassignment(drainBrokers=[1], status=STARTED), AT_TARGET, plan)
    assert (found.phase, found.verdict.reason) == (Phase.FAILED, "Incomplete")
    assert "orders-7 on broker 1 (no room)" in found.verdict.message
    new = (Unplaced("orders", 7, None, "only 1 of 3 replicas have a broker with room"),) * 2
    message = step(
        reassignment(drainBrokers=[1], status=STARTED), AT_TARGET, keep(Plan((), unplaced=new))
    ).verdict.message
    assert "2 replicas found no place: orders-7 (only 1 of 3 replicas have a broker with room)." in message
    many = tuple(Unplaced("orders", number, 1, "no room " * 20) for number in range(50))
    plan = keep(Plan((MOVE,), unplaced=many))
    message = step(reassignment(drainBrokers=[1], status=STARTED), AT_TARGET, plan).verdict.message
    assert "50 replicas found no place" in message
    assert "and 40 more" in message
    assert message.endswith("then create another Reassignment."), "what to do is told however many they are"


@pytest.mark.spec("OPR-33")
def test_a_rollback_that_failed_is_not_tried_for_ever_and_holds_no_deletion() -> None:
    failed = {**STARTED, "phase": "Failed", "observedGeneration": 1}
    assert goal_of(reassignment(partitions=ROWS, rollback=True, status=failed)) is Goal.STAY
    going = {"deletionTimestamp": NOW, "finalizers": ["ballast.dev/operator"]}
    asked = reassignment(partitions=ROWS, rollback=True, status=failed, meta={**going, "generation": 2})
    assert goal_of(asked) is Goal.BACK, "what is asked for after a failure is tried once"
    assert step(asked, ELSEWHERE).phase is Phase.FAILED
    told = {**failed, "observedGeneration": 2}
    again = reassignment(partitions=ROWS, rollback=True, status=told, meta={**going, "generation": 2})
    assert goal_of(again) is Goal.STAY


@pytest.mark.spec("OPR-36")
def test_what_cannot_go_on_is_told_while_the_rest_runs() -> None:
    within = move(((0, "/a"), (1, "/a")), ((0, "/b"), (1, "/a")), partition=1, disk=5)
    seen = view({"orders": topic_view((1, 2), (0, 1))}, {}, offline=[0])
    found = step(reassignment(drainBrokers=[1], status=STARTED), seen, keep(Plan((MOVE, within))))
    assert found.phase is Phase.RUNNING
    assert "broker 0 does not tell" in found.verdict.message


@pytest.mark.spec("OPR-33")
def test_the_annotation_leaves_everything_as_it_is_but_keeps_hold_of_it() -> None:
    meta = {"annotations": {"ballast.dev/paused": "true"}}
    running = step(reassignment(partitions=ROWS, cancel=True, status=STARTED, meta=meta), MOVING)
    assert (running.verdict.reason, running.run, running.stop) == ("Paused", False, ())
    assert (running.claims, running.holds_throttles) == (True, True)
    assert not step(reassignment(partitions=ROWS, meta=meta)).starts


STRAYED = view(
    {"orders": topic_view((0, 2))}, {("orders", 0, 0): LogView("/a", 100), ("orders", 0, 2): LogView("/c", 100)}
)


@pytest.mark.spec("OPR-33")
def test_a_replica_that_arrived_in_another_directory_does_not_hold_a_cancel_or_a_deletion_for_ever() -> None:
    assert [state.state for state in step(reassignment(partitions=ROWS, status=STARTED), STRAYED).states] == [
        State.MOVING
    ], "while it runs, it is moved on"
    cancelled = step(reassignment(partitions=ROWS, cancel=True, status=STARTED), STRAYED)
    assert (cancelled.phase, cancelled.stop) == (Phase.CANCELLED, ())
    going = {"deletionTimestamp": NOW, "finalizers": ["ballast.dev/finalizer"]}
    assert step(reassignment(partitions=ROWS, status=STARTED, meta=going), STRAYED).phase is Phase.CANCELLED
    on_its_way = view(
        {"orders": topic_view((0, 2))},
        {("orders", 0, 0): LogView("/a", 100), ("orders", 0, 2): LogView("/c", 100, "/b", 50)},
    )
    assert list(step(reassignment(partitions=ROWS, cancel=True, status=STARTED), on_its_way).stop) == [MOVE]


@pytest.mark.spec("OPR-33")
def test_a_replica_that_arrived_in_another_directory_goes_back_like_any_other() -> None:
    subject = reassignment(partitions=ROWS, cancel=True, onCancel="Rollback", status=STARTED)
    back = step(subject, STRAYED)
    assert (back.phase, back.run, back.stop) == (Phase.RUNNING, True, ())
    assert [(state.state, state.move.to) for state in back.states] == [(State.PENDING, MOVE.from_)]


@pytest.mark.spec("OPR-33", "OPR-35")
def test_only_new_replicas_are_waited_for_at_the_end() -> None:
    """A broker that had its replica before and is down may stay so: the throttles must not stay with it."""
    subject = reassignment(partitions=ROWS, status=STARTED)
    old_one_lags = view({"orders": topic_view((0, 2), isr={0: (2,)})}, TARGET)
    assert step(subject, old_one_lags).phase is Phase.SUCCEEDED


@pytest.mark.spec("OPR-33")
def test_a_rollback_waits_for_another_one_that_moves_the_same_partitions_now() -> None:
    subject = reassignment(partitions=ROWS, rollback=True, status={**STARTED, "phase": "Succeeded"})
    found = step(subject, AT_TARGET, conflicts=("nightly",))
    assert (found.phase, found.waits_for, found.run, found.claims) == (Phase.WAITING, ("nightly",), False, False)
    waiting = reassignment(partitions=ROWS, rollback=True, status={**STARTED, "phase": "Waiting"})
    assert step(waiting, AT_TARGET, conflicts=("nightly",)).phase is Phase.WAITING
    assert step(waiting, AT_TARGET).run
    begun = reassignment(partitions=ROWS, rollback=True, status=STARTED)
    assert step(begun, AT_TARGET, conflicts=("nightly",)).run, "what it has begun it does not let go"


@pytest.mark.spec("OPR-33", "OPR-35")
def test_an_end_that_waits_for_a_lost_broker_says_so_and_holds_no_partitions() -> None:
    """Its throttle can be put back by nobody but itself; other Reassignments need not wait for that."""
    rate = {"resource": "Broker", "name": "1", "key": "leader.replication.throttled.rate", "applied": ["1"]}
    subject = reassignment(partitions=ROWS, status={**STARTED, "throttle": [rate]})
    lost = view({"orders": topic_view((0, 2))}, TARGET, offline=[1])
    held = step(subject, lost, throttles_held=True)
    assert (held.phase, held.claims) == (Phase.VERIFYING, False)
    assert "until the throttles are put back, for which broker 1 has to come back or be unregistered" in (
        held.verdict.message
    )
    there = step(subject, AT_TARGET, throttles_held=True)
    assert there.verdict.message.endswith("until the throttles are put back.")


FAR = view({"orders": topic_view((0, 1))}, SOURCE, brokers=(0, 1))
ON_ITS_WAY = view(
    {"orders": topic_view((0, 2, 1))}, SOURCE, {("orders", 0): OngoingView((0, 2, 1), (2,), (1,))}, brokers=(0, 1)
)


@pytest.mark.spec("OPR-35", "OPR-36")
def test_what_is_left_for_brokers_that_are_unregistered_is_given_up_and_holds_nothing() -> None:
    """It stayed Running, with the throttles of all others, until somebody cancelled it."""
    subject = reassignment(partitions=ROWS, status=STARTED)
    moving = step(subject, ON_ITS_WAY)
    assert (list(moving.stop), moving.holds_throttles, moving.claims) == ([MOVE], True, True)
    for seen in (FAR, view({"orders": topic_view((0, 2), isr={0: (0,)})}, {}, brokers=(0, 1))):
        found = step(subject, seen, throttles_held=True)
        assert (found.phase, found.verdict.reason, found.verdict.stalled) == (
            Phase.WAITING,
            "BrokersUnregistered",
            True,
        )
        assert (found.run, found.holds_throttles, found.claims, found.stop) == (False, False, False, ())
        assert "not registered any more (2): orders-0. Cancel or delete" in found.verdict.message
    waiting = reassignment(partitions=ROWS, status={**STARTED, "phase": "Waiting"})
    again = step(waiting, AT_SOURCE)
    assert (again.phase, again.run, again.holds_throttles) == (Phase.RUNNING, True, True), "it came back"
    assert step(waiting, AT_SOURCE, conflicts=("nightly",)).waits_for == ("nightly",), "others came first meanwhile"
    cancelled = reassignment(partitions=ROWS, cancel=True, status={**STARTED, "phase": "Waiting"})
    assert step(cancelled, FAR).phase is Phase.CANCELLED


def closed(seen: KafkaView, gone: bool, broker: int = 2, path: str = "/b") -> KafkaView:
    """The same, but this directory is not there any more, or takes nothing."""
    where, known = DirectoryId(broker, path), dict(seen.directories)
    found = known.pop(where)
    return replace(seen, directories=known if gone else {**known, where: found._replace(cordoned=True)})


@pytest.mark.spec("OPR-35", "OPR-36")
@pytest.mark.parametrize("gone", [True, False])
def test_what_is_left_for_directories_that_take_nothing_holds_nothing(gone: bool) -> None:
    """A volume was removed while it waited or ran: it ran for ever, and what was to empty the volume waited for it."""
    subject = reassignment(partitions=ROWS, status=STARTED)
    strayed = view({"orders": topic_view((0, 2))}, {**TARGET, ("orders", 0, 2): LogView("/a", 100)})
    for seen in (AT_SOURCE, strayed):
        found = step(subject, closed(seen, gone), throttles_held=True)
        assert (found.phase, found.verdict.reason, found.verdict.stalled) == (Phase.WAITING, "DirectoriesClosed", True)
        assert (found.run, found.holds_throttles, found.claims, found.stop) == (False, False, False, ())
        assert "orders-0: /b of broker 2. Cancel or delete" in found.verdict.message
    for seen in (closed(MOVING, gone), closed(AT_SOURCE, gone, 1), AT_SOURCE):
        found = step(subject, seen)
        assert (found.phase, found.run, found.stop) == (Phase.RUNNING, True, ()), "what runs arrives somewhere"
    told = {"type": "Ready", "status": "False", "reason": "DirectoriesClosed", "message": "", "lastTransitionTime": NOW}
    waiting = reassignment(partitions=ROWS, status={**STARTED, "phase": "Waiting", "conditions": [told]})
    assert without_place(waiting)
    assert not without_place(subject)
    assert step(waiting, AT_SOURCE).run, "it came back"


@pytest.mark.spec("OPR-32", "OPR-36")
@pytest.mark.parametrize("gone", [True, False])
def test_a_plan_for_directories_that_take_nothing_does_not_start_but_is_made_anew(gone: bool) -> None:
    seen = closed(AT_SOURCE, gone)
    assert step(reassignment(drainBrokers=[1], approval="Required"), seen).replan
    found = step(reassignment(partitions=ROWS), seen)
    assert (found.replan, found.starts) == (True, False)
    assert step(reassignment(partitions=ROWS, approval="Required"), seen).phase is Phase.AWAITING_APPROVAL
    assert step(reassignment(partitions=ROWS), seen, conflicts=("drain",)).phase is Phase.WAITING


@pytest.mark.spec("OPR-33", "OPR-36")
@pytest.mark.parametrize(("gone", "phase"), [(True, Phase.FAILED), (False, Phase.WAITING)])
def test_what_cannot_be_put_back_fails_only_where_its_directories_are_gone(gone: bool, phase: Phase) -> None:
    going = {"deletionTimestamp": NOW, "finalizers": ["ballast.dev/finalizer"]}
    seen = closed(AT_TARGET, gone, 1, "/a")
    first = step(reassignment(partitions=ROWS, onCancel="Rollback", status=STARTED, meta=going), seen)
    assert (first.phase, first.verdict.reason) == (Phase.WAITING, "DirectoriesClosed")
    said = {
        "status": "True",
        "reason": "DirectoriesClosed",
        "message": "",
        "lastTransitionTime": "2026-01-02T03:03:00Z",
    }
    told = {**STARTED, "phase": "Waiting", "conditions": [{"type": kind, **said} for kind in ("Ready", "Stalled")]}
    subject = reassignment(partitions=ROWS, onCancel="Rollback", status=told, meta=going)
    assert step(subject, seen).phase is phase


@pytest.mark.spec("OPR-36")
def test_a_broker_that_is_away_or_of_which_nobody_would_tell_is_waited_for() -> None:
    subject = reassignment(partitions=ROWS, status=STARTED)
    for seen in (view(dict(AT_SOURCE.topics), SOURCE, offline=[2]), replace(FAR, lists_fenced=False)):
        found = step(subject, seen)
        assert (found.phase, found.run, found.holds_throttles) == (Phase.RUNNING, True, True)


@pytest.mark.spec("OPR-36")
def test_others_that_can_go_on_do_before_anything_is_given_up() -> None:
    other = move(((0, "/a"), (1, "/a")), ((0, "/b"), (1, "/a")), partition=1, disk=5)
    seen = view({"orders": topic_view((0, 1), (0, 1))}, {**SOURCE, ("orders", 1, 0): LogView("/a", 5)}, brokers=(0, 1))
    found = step(reassignment(partitions=ROWS, status=STARTED), seen, keep(Plan((MOVE, other))))
    assert (found.phase, found.run, found.stop) == (Phase.RUNNING, True, ())


@pytest.mark.spec("OPR-33", "OPR-36")
def test_what_cannot_be_put_back_as_its_brokers_are_unregistered_fails_when_that_is_sure() -> None:
    """It was tried for ever, and a deletion waited as long."""
    going = {"deletionTimestamp": NOW, "finalizers": ["ballast.dev/finalizer"]}
    seen = view({"orders": topic_view((0, 2))}, TARGET, brokers=(0, 2))
    found = step(reassignment(partitions=ROWS, onCancel="Rollback", status=STARTED, meta=going), seen)
    assert (found.phase, found.verdict.reason) == (Phase.WAITING, "BrokersUnregistered")
    for since, phase in (("2026-01-02T03:03:30Z", Phase.WAITING), ("2026-01-02T03:03:05Z", Phase.FAILED)):
        said = {"status": "True", "reason": "BrokersUnregistered", "message": "", "lastTransitionTime": since}
        told = {**STARTED, "phase": "Waiting", "conditions": [{"type": kind, **said} for kind in ("Ready", "Stalled")]}
        subject = reassignment(partitions=ROWS, onCancel="Rollback", status=told, meta=going)
        assert step(subject, seen).phase is phase


@pytest.mark.spec("OPR-33")
def test_what_has_ended_but_for_its_throttles_does_not_begin_anew_when_another_one_moves_its_partitions() -> None:
    """Two of them moved a partition to and fro without end."""
    subject = reassignment(partitions=ROWS, status={**STARTED, "phase": "Verifying"})
    assert step(subject, AT_TARGET, throttles_held=True).claims, "nobody else begins before it has ended"
    said = {"type": "Ready", "status": "False", "reason": "ThrottlesLeft", "message": "", "lastTransitionTime": NOW}
    waits = reassignment(partitions=ROWS, status={**STARTED, "phase": "Verifying", "conditions": [said]})
    found = step(waits, AT_SOURCE, conflicts=("nightly",), throttles_held=True)
    assert (found.phase, found.waits_for, found.run) == (Phase.WAITING, ("nightly",), False)


@pytest.mark.spec("OPR-33")
def test_what_was_deleted_meanwhile_is_not_told_as_moved() -> None:
    plan = keep(Plan((MOVE, replace(MOVE, topic="deleted"))))
    seen = replace(AT_TARGET, missing=frozenset({"deleted"}))
    there = step(reassignment(drainBrokers=[1], status=STARTED), seen, plan)
    assert there.phase is Phase.SUCCEEDED
    assert there.verdict.message == "Moved 1 partition; not there any more: deleted-0."
    back = step(
        reassignment(drainBrokers=[1], rollback=True, status=STARTED), replace(AT_SOURCE, missing=seen.missing), plan
    )
    assert back.phase is Phase.ROLLED_BACK
    assert back.verdict.message == "Everything is back where it was; not there any more: deleted-0."
    whole = step(reassignment(drainBrokers=[1], status=STARTED), AT_TARGET)
    assert whole.verdict.message == "Moved 1 partition."
