"""The judge of plans: what is wrong with one, fault by fault, each in a plan that has no other."""

from __future__ import annotations

import pytest

from ballast_planner import Broker, ClusterLoad, Directory, Move, Placement, Plan, Replica, check_plan

pytestmark = pytest.mark.spec("REB-07")

HIGH_WATER = 0.9
A, B = "/a", "/b"


def load() -> ClusterLoad:
    """Brokers 1 to 3 in two racks, each with two directories of 100 bytes; 4 is cordoned. t-0 is of 40 bytes."""
    brokers = [Broker(1, "r1"), Broker(2, "r2"), Broker(3, "r1"), Broker(4, "r2", cordoned=True)]
    used = {(1, A): 40, (2, A): 40, (2, B): 52, (3, A): 30, (3, B): 30}
    directories = [
        Directory(broker.id, path, 100, used.get((broker.id, path), 0)) for broker in brokers for path in (A, B)
    ]
    replicas = [
        Replica("t", 0, 1, A, 40, True, 0), Replica("t", 0, 2, A, 40, False, 1),
        Replica("t", 1, 3, A, 30, True, 0), Replica("t", 2, 3, B, 30, True, 0),
    ]  # fmt: skip
    return ClusterLoad.from_rows(brokers, directories, replicas)


def place(**where: str) -> Placement:
    """`_1="/a"`: on broker 1 in this directory, in this order."""
    return Placement(tuple(int(name[1:]) for name in where), tuple(where.values()))


HERE = place(_1=A, _2=A)


def moved(to: Placement, from_: Placement = HERE, partition: int = 0, wave: int = 0) -> Move:
    return Move("t", partition, from_, to, 0, 0, wave)


def faults(*moves: Move, must_not_worsen: bool = False) -> list[str]:
    return check_plan(load(), Plan(moves), HIGH_WATER, must_not_worsen)


def test_a_plan_without_fault_has_none() -> None:
    assert faults(moved(place(_1=B, _2=A)), moved(place(_1=B), place(_3=A), partition=1)) == []
    assert faults(moved(place(_3=A, _2=A)), must_not_worsen=False) == []
    assert faults(moved(place(_1="any", _2=A))) == [], "where on its broker is the broker's"


@pytest.mark.parametrize(
    ("move", "fault"),
    [
        (Move("elsewhere", 0, HERE, place(_1=B, _2=A), 0, 0, 0), "elsewhere-0 is not known"),
        (moved(place(_1=B), partition=7), "t-7 is not known"),
        (moved(place(_1=B, _2=A), place(_2=A, _1=A)), "t-0: its `from` is not where it is"),
        (moved(place(_1=A, _2=A), place(_1=B, _2=A)), "t-0: its `from` is not where it is"),
        (moved(HERE), "t-0: moves nothing"),
        (moved(place(_1="/c", _2=A)), "t-0: broker 1 has no directory /c"),
        (moved(place(_1=A, _4=B)), "t-0: /b on broker 4 takes no replicas"),
        (moved(place(_1=A, _3=A)), "t-0: on fewer racks than before"),
        (moved(place(_1=A, _2=B)), "wave 0: /b on broker 2 passes its high-water mark"),
    ],
)
def test_each_fault_is_told(move: Move, fault: str) -> None:
    assert faults(move) == [fault]


@pytest.mark.parametrize("to", [Placement((2, 2), (A, B)), Placement((), ())])
def test_two_replicas_on_one_broker_or_none_at_all(to: Placement) -> None:
    assert "t-0: two replicas on one broker, or none at all" in faults(moved(to))


def test_a_partition_is_moved_once() -> None:
    assert faults(moved(place(_1=B, _2=A)), moved(place(_1=B, _2=A))) == ["t-0 is moved twice"]


def test_what_a_wave_frees_is_there_for_the_next_and_not_for_itself() -> None:
    """40 bytes go from where 40 + 60 are to be."""
    away = moved(place(_1=B, _2=A))
    here = [moved(place(_1=A), place(_3=path), partition, wave=1) for partition, path in ((1, A), (2, B))]
    assert faults(away, *here) == []
    at_once = [moved(move.to, move.from_, move.partition) for move in here]
    assert faults(away, *at_once) == ["wave 0: /a on broker 1 passes its high-water mark"]


def test_nothing_may_end_fuller_than_the_fullest_was_where_that_is_asked() -> None:
    """2's /b is the fullest, with 52 of 100."""
    fuller = moved(place(_2=A), place(_3=A), partition=1)  # 70 of 100
    assert faults(fuller) == []
    (told,) = faults(fuller, must_not_worsen=True)
    assert told == "/a on broker 2 would end at 0.7000, above the highest before, 0.5200"
    assert faults(moved(place(_1=B), place(_3=A), partition=1), must_not_worsen=True) == []
