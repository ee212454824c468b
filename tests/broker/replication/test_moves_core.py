"""The decisions about moves, without a disk."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_broker.replication.moves import (
    ENOUGH_CHASING,
    Convergence,
    Move,
    MoveQueue,
    Position,
    Request,
    Stage,
    Step,
    decide_request,
    next_step,
)
from ballast_wire.names import TopicPartition

D1, D2, D3 = "/d1", "/d2", "/d3"


def move(number: int = 0, **fields: object) -> Move:
    made = Move(TopicPartition("orders", number), UUID(int=500), D1, D2)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def position(future_end: int, *, source_end: int = 100, left: int = 1_000_000, sealed: bool = False) -> Position:
    return Position(0, source_end, future_end, left, sealed)


@pytest.mark.spec("DIR-16")
@pytest.mark.parametrize(
    ("destination", "wanted", "expected"),
    [
        (None, D1, Request.NOTHING),
        (None, D2, Request.START),
        (D2, D2, Request.NOTHING),
        (D2, D1, Request.CANCEL),
        (D2, D3, Request.REDIRECT),
    ],
)
def test_what_a_request_means(destination: str | None, wanted: str, expected: Request) -> None:
    assert decide_request(D1, destination, wanted) is expected


@pytest.mark.spec("DIR-29")
def test_the_steps_of_a_move_in_order() -> None:
    made = move()
    assert next_step(made, position(0, sealed=True)) is Step.COPY_SEGMENT
    assert next_step(made, position(60)) is Step.COPY_TAIL
    assert next_step(made, position(100, left=0)) is Step.ASK
    made.told_controller, made.stage = True, Stage.ASKING
    assert next_step(made, position(100, left=0)) is Step.WAIT
    made.stage = Stage.AGREED
    assert next_step(made, position(100, left=0)) is Step.FLUSH
    made.flushed = True
    assert next_step(made, position(90, left=5_000)) is Step.SWAP
    assert next_step(made, position(50, left=50_000_000)) is Step.COPY_TAIL, "too much to hold appends for"


@pytest.mark.spec("DIR-29")
def test_a_log_that_is_never_level_has_caught_up_when_only_little_is_left_again_and_again() -> None:
    made = move()
    for number in range(ENOUGH_CHASING):
        assert next_step(made, position(99, left=5_000)) is Step.COPY_TAIL
        for _ in range(3):  # other pieces of the same
            made.chases(100 + number, 5_000)
    assert next_step(made, position(50, left=50_000_000)) is Step.COPY_TAIL
    assert next_step(made, position(99, left=5_000)) is Step.ASK
    made.told_controller, made.stage = True, Stage.AGREED
    assert next_step(made, position(99, left=5_000)) is Step.FLUSH
    made.flushed = True
    assert next_step(made, position(99, left=5_000)) is Step.SWAP
    made.flushed = False
    made.chases(200, 50_000_000)
    assert next_step(made, position(99, left=5_000)) is Step.COPY_TAIL, "it fell behind"


@pytest.mark.spec("DIR-29")
def test_no_swap_without_agreement_or_flush() -> None:
    for stage in (Stage.COPYING, Stage.ASKING):
        assert next_step(move(stage=stage, flushed=True, told_controller=True), position(100, left=0)) is Step.WAIT
    assert next_step(move(stage=Stage.AGREED, told_controller=True), position(100, left=0)) is Step.FLUSH


@pytest.mark.spec("DIR-28")
def test_a_truncation_comes_before_everything() -> None:
    made = move(stage=Stage.AGREED, flushed=True, told_controller=True)
    made.note_truncation(40)
    made.note_truncation(70)
    assert made.cut_at == 40
    assert next_step(made, position(100, left=0)) is Step.CUT


@pytest.mark.spec("DIR-24")
def test_a_mover_takes_agreed_moves_first_and_stays_with_the_one_it_began() -> None:
    queue = MoveQueue()
    first, second, third = move(1), move(2), move(3)
    for each in (third, second):
        queue.add(each)
    assert queue.next() is second
    queue.add(first)
    assert queue.next() is second, "it stays"
    second.enter(Stage.ASKING)
    assert queue.next() is first
    second.enter(Stage.AGREED)
    assert queue.next() is second
    queue.remove(second)
    first.pause("no room")
    assert queue.next() is third
    third.pause("no room")
    assert queue.next() is None
    assert len(queue) == 2


@pytest.mark.spec("DIR-26")
def test_one_that_does_not_converge_lets_the_others_go_first() -> None:
    queue = MoveQueue()
    slow, other = move(1), move(2)
    queue.add(slow)
    queue.add(other)
    assert queue.next() is slow
    queue.defer(slow)
    assert queue.next() is other
    queue.remove(other)
    assert queue.next() is slow, "and then it has its turn again"


class Counted(TopicPartition):
    """Counts comparisons."""

    compared = 0

    def __lt__(self, other: object) -> bool:
        Counted.compared += 1
        return tuple(self) < other if isinstance(other, tuple) else NotImplemented


@pytest.mark.spec("DIR-24")
def test_to_find_the_next_of_thousands_few_are_looked_at() -> None:
    queue, count = MoveQueue(), 2_000
    for number in reversed(range(count)):
        queue.add(Move(Counted("orders", number), UUID(int=1), D1, D2))
    Counted.compared = 0
    for number in range(count):
        following = queue.next()
        assert following is not None
        assert following.topic_partition.partition == number
        following.enter(Stage.ASKING)
    assert queue.next() is None
    assert Counted.compared < count * 30


class Plain:
    """A naive model of the queue, which looks at everything each time."""

    def __init__(self) -> None:
        self.moves: list[Move] = []
        self.deferred: set[Move] = set()
        self.current: Move | None = None

    def able(self) -> list[Move]:
        return [each for each in self.moves if each.stage in (Stage.COPYING, Stage.AGREED) and not each.paused]

    def remove(self, gone: Move) -> None:
        self.moves.remove(gone)
        self.deferred.discard(gone)
        if self.current is gone:
            self.current = None

    def next(self) -> Move | None:
        ready = [each for each in self.able() if each not in self.deferred]
        if not ready and self.able():
            self.deferred.clear()
            ready = self.able()
        agreed = [each for each in ready if each.stage is Stage.AGREED]
        if agreed or self.current not in ready:
            self.current = min(agreed or ready, key=lambda each: each.topic_partition, default=None)
        return self.current


@pytest.mark.spec("DIR-24", "DIR-26")
@settings(max_examples=300, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["add", "remove", "defer", "pause", "go on", *Stage.__members__]), st.integers(0, 4))
    )
)
def test_the_queue_is_what_its_definition_says_whatever_happens(steps: list[tuple[str, int]]) -> None:
    queue, plain, moves = MoveQueue(), Plain(), dict[int, Move]()
    for what, number in steps:
        each = moves.get(number)
        if what == "add" and each is None:
            moves[number] = each = move(number)
            queue.add(each)
            plain.moves.append(each)
        elif each is None:
            continue
        elif what == "remove":
            queue.remove(moves.pop(number))
            plain.remove(each)
        elif what == "defer":
            queue.defer(each)
            plain.deferred.add(each)
        elif what in ("pause", "go on"):
            each.pause("no room" if what == "pause" else None)
        elif what in Stage.__members__:
            each.enter(Stage[what])
        assert queue.has_other_work() == bool(plain.able())
        assert set(queue.paused) == {each for each in plain.moves if each.paused}
        assert queue.next() is plain.next()


@pytest.mark.spec("DIR-26")
def test_convergence_is_judged_over_a_window() -> None:
    convergence = Convergence()
    assert convergence.observe(0.0, 1000) is None
    assert convergence.observe(5.0, 5000) is None
    assert convergence.observe(10.0, 900) is True
    assert convergence.observe(20.0, 900) is False
    convergence.interrupted()
    assert convergence.observe(31.0, 10_000) is None
