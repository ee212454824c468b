"""Small clusters whose best plan can be told by hand or by trying everything."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from tests.planner.clusters import apply_moves, skewed_disks, solve_in_turn

from ballast_planner import (
    Broker,
    ClusterLoad,
    Directory,
    Move,
    Placement,
    PlanError,
    PlanOptions,
    Replica,
    StaleRowsError,
    check_plan,
    plan_add_brokers,
    plan_balance,
    plan_drain,
    plan_explicit,
    plan_generate,
    plan_hash,
    plan_replication_factor,
    rows_from_spec,
    spec_rows,
)
from ballast_planner.quality import expected_seconds

QUIET = PlanOptions(level_leaders=False)


def led_by_the_first(bytes_out: float, failed: bool = False) -> ClusterLoad:
    """Level disks on three brokers, of which the first leads everything; every other follower is on disks of
    their own, which may have failed."""
    replicas = [
        Replica(topic, number, broker, f"/d{broker and number % 2}", 10, broker == 0, broker, bytes_out=bytes_out)
        for topic in ("free", "named")
        for number in range(20)
        for broker in range(3)
    ]
    whole = [Directory(0, "/d0", 2_000, 400)]
    halves = [Directory(b, f"/d{d}", 1_000, 200, online=not (failed and d)) for b in (1, 2) for d in (0, 1)]
    return ClusterLoad.from_rows([Broker(b) for b in range(3)], whole + halves, replicas)


def one_broker(sizes: list[list[int]]) -> ClusterLoad:
    """A broker whose disk i holds replicas of sizes[i]."""
    number = itertools.count()
    replicas = [Replica("t", next(number), 0, f"/d{d}", size, True) for d, held in enumerate(sizes) for size in held]
    directories = [Directory(0, f"/d{d}", 1_000, sum(held)) for d, held in enumerate(sizes)]
    return ClusterLoad.from_rows([Broker(0)], directories, replicas)


@pytest.mark.spec("REB-05", "REB-07")
def test_an_empty_disk_is_filled_by_as_few_bytes_as_the_bound_says() -> None:
    plan = plan_balance(skewed_disks(disks=3, partitions=300), QUIET)
    assert plan.quality is not None
    assert plan.bounds is not None
    assert plan.quality.after.out_of_band == 0
    assert plan.quality.bytes_network == 0
    assert plan.quality.bytes_disk <= 1.01 * plan.bounds.bytes_total


@pytest.mark.spec("REB-06")
@pytest.mark.parametrize("sizes", [[[70, 60, 50, 40], [10, 5]], [[50, 31, 20], [49], []], [[55, 54, 53], [20, 21, 22]]])
def test_small_brokers_are_solved_exactly(sizes: list[list[int]]) -> None:
    load = one_broker(sizes)
    plan = plan_balance(load, QUIET)
    assert plan.quality is not None
    assert plan.bounds is not None
    assert plan.quality.bytes_disk == cheapest(sizes, plan.bounds.band_low * 1_000, plan.bounds.band_high * 1_000)
    assert plan.quality.after.out_of_band == 0


def cheapest(sizes: list[list[int]], low: float, high: float) -> int:
    """By trying every placement: fewest bytes that bring all disks into the band."""
    replicas = [(disk, size) for disk, held in enumerate(sizes) for size in held]
    best = 10**9
    for places in itertools.product(range(len(sizes)), repeat=len(replicas)):
        sums = [0] * len(sizes)
        for (_, size), place in zip(replicas, places, strict=True):
            sums[place] += size
        if all(low <= held <= high for held in sums):
            moved = sum(size for (disk, size), place in zip(replicas, places, strict=True) if disk != place)
            best = min(best, moved)
    return best


@pytest.mark.spec("REB-05")
def test_two_giants_in_one_directory_are_parted() -> None:
    small = [1] * 200
    load = one_broker([[400, 390], [*small, *small], [*small, *small]])
    for options in (QUIET, PlanOptions(level_leaders=False, exact_binaries=0)):
        plan = plan_balance(load, options)
        assert plan.quality is not None
        assert plan.quality.before.highest == pytest.approx(0.79)
        assert plan.quality.after.highest <= 0.585


@pytest.mark.spec("REB-05")
def test_racks_are_kept_and_repaired() -> None:
    brokers = [Broker(b, "ab"[b % 2]) for b in range(4)]
    replicas = [
        replica
        for p in range(20)
        for replica in (
            Replica("t", p, 0, "/d", 30, True, 0),
            Replica("t", p, 1 if p else 2, "/d", 30, False, 1),
        )
    ]
    used = {b: sum(r.size_bytes for r in replicas if r.broker == b) for b in range(4)}
    load = ClusterLoad.from_rows(brokers, [Directory(b, "/d", 2_000, used[b]) for b in range(4)], replicas)
    plan = plan_balance(load, QUIET)
    repaired = {(move.topic, move.partition): move for move in plan.moves}[("t", 0)]
    assert {broker % 2 for broker in repaired.to.replicas} == {0, 1}
    for move in plan.moves:
        assert {broker % 2 for broker in move.to.replicas} == {0, 1}


@pytest.mark.spec("REB-05")
def test_leaders_are_levelled_without_moving_bytes() -> None:
    replicas = [
        r for p in range(12) for r in (Replica("t", p, 0, "/d", 10, True, 0), Replica("t", p, 1, "/d", 10, False, 1))
    ]
    load = ClusterLoad.from_rows([Broker(0), Broker(1)], [Directory(b, "/d", 1_000, 120) for b in (0, 1)], replicas)
    plan = plan_balance(load)
    assert plan.quality is not None
    assert plan.quality.bytes_network + plan.quality.bytes_disk == 0
    assert 5 <= plan.quality.leader_changes <= 7
    assert all(set(move.to.replicas) == {0, 1} for move in plan.moves)


@pytest.mark.spec("REB-05")
def test_traffic_in_is_levelled_where_it_is_known() -> None:
    replicas = [Replica("t", p, p % 2, "/d", 10, True, 0, 100.0 if p % 2 else 1.0, 0.0) for p in range(20)]
    directories = [Directory(0, "/d", 1_000, 100), Directory(1, "/d", 1_000, 140)]
    load = ClusterLoad.from_rows([Broker(0), Broker(1)], directories, replicas)
    assert not plan_balance(load, PlanOptions(level_leaders=False, band=0.4, level_traffic=False)).moves
    busy = {p for p in range(20) if p % 2}
    moved = {move.partition for move in plan_balance(load, PlanOptions(level_leaders=False, band=0.4)).moves}
    assert moved
    assert moved <= busy


@pytest.mark.spec("REB-05")
def test_what_followers_fetch_is_in_the_bytes_out_and_counted_once() -> None:
    """Broker 0 leads what is only produced and replicated, broker 1 what is only consumed: as much goes out of both."""
    replicas = [
        Replica("t", p, broker, "/d", 10, broker == p % 2, int(broker != p % 2), 0.0 if p % 2 else 100.0, 100.0)
        for p in range(8)
        for broker in (0, 1)
    ]
    load = ClusterLoad.from_rows([Broker(0), Broker(1)], [Directory(b, "/d", 1_000, 80) for b in (0, 1)], replicas)
    assert not plan_balance(load, QUIET).moves


@pytest.mark.spec("REB-05")
def test_no_traffic_is_levelled_at_the_price_of_a_disk_below_its_band() -> None:
    held = [(0, 15, 3.0), (0, 85, 27.0), (1, 92, 0.0), (2, 108, 0.0)]
    replicas = [Replica("t", p, b, "/d", size, True, 0, rate) for p, (b, size, rate) in enumerate(held)]
    used = {0: 100, 1: 92, 2: 108}
    load = ClusterLoad.from_rows(
        [Broker(broker) for broker in used], [Directory(b, "/d", 1_000, bytes_) for b, bytes_ in used.items()], replicas
    )
    assert not plan_balance(load, QUIET).moves


@pytest.mark.spec("REB-05")
@pytest.mark.parametrize(("led", "handed_over"), [((105, 95), 0), ((2, 1), 0), ((115, 85), 5)])
def test_leaders_within_the_band_or_one_from_the_mean_stay(led: tuple[int, int], handed_over: int) -> None:
    order = [(0, 1)] * led[0] + [(1, 0)] * led[1]
    replicas = [
        Replica("t", number, broker, "/d", 1, position == 0, position)
        for number, brokers in enumerate(order)
        for position, broker in enumerate(brokers)
    ]
    directories = [Directory(broker, "/d", 1_000, sum(led)) for broker in (0, 1)]
    plan = plan_balance(ClusterLoad.from_rows([Broker(0), Broker(1)], directories, replicas))
    assert plan.quality is not None
    assert (plan.quality.leader_changes, len(plan.moves)) == (handed_over, handed_over)


@pytest.mark.spec("REB-07")
def test_waves_take_their_time_one_after_another_and_brokers_together() -> None:
    def move(partition: int, before: int, after: int, size: int, wave: int) -> Move:
        return Move("t", partition, Placement((before,), ("/a",)), Placement((after,), ("/b",)),
                    size if before != after else 0, size if before == after else 0, wave)  # fmt: skip

    moves = [
        move(0, 1, 2, 300, 0),
        move(1, 1, 2, 100, 0),
        move(2, 2, 3, 200, 0),
        move(3, 3, 3, 50, 0),
        move(4, 3, 1, 60, 1),
    ]
    limits = PlanOptions(inter_broker_bytes_per_second=10, intra_broker_bytes_per_second=1)
    assert expected_seconds(moves, limits) == 50 + 6, "broker 3 moves 50 bytes between its disks at one a second"
    assert expected_seconds(moves, replace(limits, intra_broker_bytes_per_second=5)) == 40 + 6
    assert expected_seconds(moves, replace(limits, intra_broker_bytes_per_second=None)) is None


@pytest.mark.spec("OPR-31")
def test_waves_keep_every_directory_under_its_mark() -> None:
    load = one_broker([[300] * 3, [80] * 11])
    targets = [
        {"topic": "t", "partition": p, "replicas": [0], "logDirs": ["/d1" if p < 3 else "/d0"]} for p in range(14)
    ]
    plan = plan_explicit(load, rows_from_spec(targets), QUIET)
    assert plan.quality is not None
    assert plan.quality.highest_transient <= 0.95
    assert not check_plan(load, plan, 0.95)


def crowded(seed: int) -> ClusterLoad:
    """A broker with six disks, two of them above the high-water mark, and hardly more room than mending that takes."""
    chance, number = random.Random(seed), itertools.count()
    replicas: list[Replica] = []
    directories: list[Directory] = []
    for disk, full in enumerate((10_000, 9_850, 9_400, 9_300, 8_800, 8_500)):
        used = 0
        while used <= full - 200:
            size = min(chance.randint(200, 1_500), full - used)
            replicas.append(Replica("t", next(number), 0, f"/d{disk}", size, True))
            used += size
        directories.append(Directory(0, f"/d{disk}", 10_000, used))
    return ClusterLoad.from_rows([Broker(0)], directories, replicas)


@pytest.mark.spec("REB-05", "OPR-31")
@pytest.mark.parametrize("seed", [3, 17, 28, 51, 58])
def test_one_plan_brings_full_disks_below_their_mark_where_copies_hardly_have_room(seed: int) -> None:
    """An exchange needs room for both on its way; where others have it, they wait, or others are exchanged."""
    load = crowded(seed)
    plan = plan_balance(load, PlanOptions(exact_binaries=0))
    assert not check_plan(load, plan, 0.95, must_not_worsen=True)
    after = apply_moves(load, plan.moves)
    assert max(after.directories.used / after.directories.total) <= 0.95


@pytest.mark.spec("OPR-32")
def test_stale_rows_are_named() -> None:
    load = skewed_disks()
    rows = list(rows_from_spec(spec_rows(plan_balance(load, QUIET).moves[:3])))
    assert len(plan_explicit(load, rows).moves) == 3
    elsewhere = Placement((0,), ("/d2" if rows[1].to.log_dirs != ("/d2",) else "/d1",))
    rows[1] = rows[1]._replace(from_=elsewhere)
    with pytest.raises(StaleRowsError) as caught:
        plan_explicit(load, rows)
    assert caught.value.rows == (f"t-{rows[1].partition}",)


@pytest.mark.spec("OPR-30")
def test_what_cannot_be_asked_for_is_refused() -> None:
    load = skewed_disks()
    row = {"topic": "t", "partition": 0, "replicas": [7]}
    with pytest.raises(PlanError, match="broker 7"):
        plan_explicit(load, rows_from_spec([row]))
    with pytest.raises(PlanError, match="no directory /x"):
        plan_explicit(load, rows_from_spec([row | {"replicas": [0], "logDirs": ["/x"]}]))
    with pytest.raises(PlanError, match="not known"):
        plan_explicit(load, rows_from_spec([row | {"topic": "u"}]))
    with pytest.raises(PlanError, match="broker 9"):
        plan_drain(load, brokers=[9])
    with pytest.raises(PlanError, match="no directory"):
        plan_drain(load, directories=[(0, "/x")])
    with pytest.raises(PlanError, match="topic u"):
        plan_replication_factor(load, {"u": 2})


@pytest.mark.spec("OPR-30")
def test_draining_a_directory_stays_inside_the_broker() -> None:
    load = skewed_disks()
    plan = plan_drain(load, directories=[(0, "/d0")], options=QUIET)
    assert len(plan.moves) == 60
    assert {move.to.log_dirs for move in plan.moves} == {("/d1",), ("/d2",)}
    assert plan.quality is not None
    assert plan.quality.bytes_network == 0


@pytest.mark.spec("OPR-30", "REB-05")
def test_a_broker_that_one_replica_leaves_is_no_place_for_another_of_its_partition() -> None:
    """For brokers it would be the one that stays, and has to fit into the other's place: it is four times as large."""
    replicas = [Replica("t", 0, 3, "/a", 100, True, 0), Replica("t", 0, 1, "/a", 400, False, 1)]
    used = {(0, "/a"): 500, (1, "/a"): 500, (1, "/b"): 600, (3, "/a"): 100}
    directories = [Directory(broker, path, 1_000, held) for (broker, path), held in used.items()]
    load = ClusterLoad.from_rows([Broker(0), Broker(1), Broker(3)], directories, replicas)
    plan = plan_drain(load, brokers=[3], directories=[(1, "/a")])
    assert [move.to for move in plan.moves] == [Placement((3, 0), ("/a", "/a"))]
    assert (plan.moves[0].bytes_network, plan.moves[0].bytes_disk) == (400, 0)
    assert [(row.broker, row.reason) for row in plan.unplaced] == [
        (3, "no directory may take it: brokers of its other replicas, racks and room leave none")
    ]


@pytest.mark.spec("REB-05")
def test_another_replica_goes_below_the_mark_rather_than_to_a_fresh_rack() -> None:
    """A step to a place above the mark was left out of the plan, whatever room there was elsewhere."""
    brokers = [Broker(1, "a"), Broker(2, "b"), Broker(3, "a")]
    directories = [Directory(1, "/a", 1_000, 50), Directory(2, "/a", 1_000, 940), Directory(3, "/a", 1_000, 100)]
    load = ClusterLoad.from_rows(brokers, directories, [Replica("t", 0, 1, "/a", 50, True, 0)])
    plan = plan_replication_factor(load, {"t": 2})
    assert ([move.to.replicas for move in plan.moves], plan.unplaced) == ([(1, 3)], ())


@pytest.mark.spec("REB-05", "CLU-34")
@pytest.mark.parametrize(("away", "kept"), [({"cordoned": True}, (1, 3)), ({"online": False}, (2, 3))])
def test_fewer_replicas_stay_on_as_many_racks_as_hold_data(away: dict[str, bool], kept: tuple[int, ...]) -> None:
    """The first is alone on its rack and on a disk that is to go, or that has failed: there it holds nothing."""
    brokers = [Broker(1, "a"), Broker(2, "b"), Broker(3, "b")]
    directories = [Directory(1, "/d", 1_000, 10, **away), *(Directory(broker, "/d", 1_000, 10) for broker in (2, 3))]
    replicas = [
        Replica("t", 0, broker.id, "/d", 10, position == 0, position) for position, broker in enumerate(brokers)
    ]
    plan = plan_replication_factor(ClusterLoad.from_rows(brokers, directories, replicas), {"t": 2})
    assert [move.to.replicas for move in plan.moves] == [kept]


@pytest.mark.spec("REB-05", "CLU-34")
def test_a_replica_that_nobody_describes_yet_counts_on_its_rack() -> None:
    brokers = [Broker(1, "a"), Broker(2, "c", cordoned=True), Broker(3, "b"), Broker(5, "b")]
    directories = [Directory(broker.id, "/d", 1_000, 10) for broker in brokers]
    replicas = [
        Replica("t", 0, broker, None if broker == 1 else "/d", 10, position == 0, position)
        for position, broker in enumerate((3, 5, 1, 2))
    ]
    plan = plan_replication_factor(ClusterLoad.from_rows(brokers, directories, replicas), {"t": 3})
    assert [move.to.replicas for move in plan.moves] == [(3, 1, 2)]


@pytest.mark.spec("REB-05", "CLU-34")
def test_of_several_replicas_more_those_are_made_that_have_room() -> None:
    """One that no broker can take below its mark does not keep the others from being made."""
    held = {1: 50, 2: 100, 3: 940}
    directories = [Directory(broker, "/a", 1_000, used) for broker, used in held.items()]
    load = ClusterLoad.from_rows([Broker(broker) for broker in held], directories, [Replica("t", 0, 1, "/a", 50, True)])
    plan = plan_replication_factor(load, {"t": 3})
    assert [move.to.replicas for move in plan.moves] == [(1, 2)]
    assert [row.reason for row in plan.unplaced] == ["only 2 of 3 replicas have a broker with room"]


@pytest.mark.spec("OPR-31")
def test_what_leaves_in_one_wave_makes_room_for_the_next_up_to_the_mark() -> None:
    brokers, sizes = [Broker(number) for number in (1, 2, 3)], (500, 950)
    replicas = [Replica("t", number, number + 1, "/a", size, True) for number, size in enumerate(sizes)]
    load = ClusterLoad.from_rows(brokers, [Directory(broker.id, "/a", 1_000, 0) for broker in brokers], replicas)
    rows = rows_from_spec([{"topic": "t", "partition": number, "replicas": [to]} for number, to in ((0, 3), (1, 1))])
    plan = plan_explicit(load, rows)
    assert ([(move.partition, move.wave) for move in plan.moves], plan.unplaced) == ([(0, 0), (1, 1)], ())


@pytest.mark.spec("OPR-30")
def test_what_has_no_room_is_named_by_the_broker_that_it_stays_on() -> None:
    brokers = [Broker(number) for number in (1, 2, 3)]
    directories = [Directory(1, "/a", 1_000, 50), Directory(2, "/a", 1_000, 50), Directory(3, "/a", 1_000, 940)]
    load = ClusterLoad.from_rows(
        brokers, directories, [Replica("t", 0, 1, "/a", 50, True, 0), Replica("t", 0, 2, "/a", 50, True, 1)]
    )
    rows = rows_from_spec([{"topic": "t", "partition": 0, "replicas": [1, 3], "logDirs": ["any", "/a"]}])
    assert [row.broker for row in plan_explicit(load, rows).unplaced] == [2]
    rows = rows_from_spec([{"topic": "t", "partition": 0, "replicas": [1, 2, 3], "logDirs": ["any", "any", "/a"]}])
    assert [row.broker for row in plan_explicit(load, rows).unplaced] == [None]


@pytest.mark.spec("OPR-30", "REB-05")
def test_a_replica_that_lags_needs_the_room_of_those_that_do_not() -> None:
    """Elsewhere it is a copy of the leader. Two that leave at once are no exception, nor is a row that names it."""
    replicas = [Replica("t", 0, 1, "/a", 400, True, 0), Replica("t", 0, 2, "/a", 100, False, 1)]
    brokers, used = [Broker(number) for number in (1, 2, 3, 4)], {1: 400, 2: 100, 3: 500, 4: 800}
    directories = [Directory(broker, "/a", 1_000, held) for broker, held in used.items()]
    load = ClusterLoad.from_rows(brokers, directories, replicas)
    assert [row.reason for row in plan_drain(load, brokers=[1, 2]).unplaced] == [
        "no room for the copy while both exist"
    ]
    alone = ClusterLoad.from_rows([*brokers[:2], brokers[3]], [*directories[:2], directories[3]], replicas)
    plan = plan_drain(alone, brokers=[2])
    assert (plan.moves, len(plan.unplaced)) == ((), 1)
    rows = rows_from_spec([{"topic": "t", "partition": 0, "replicas": [1, 4], "logDirs": ["any", "/a"]}])
    assert (plan_explicit(load, rows).moves, len(plan_explicit(load, rows).unplaced)) == ((), 1)
    roomy = ClusterLoad.from_rows(brokers[:3], directories[:3], replicas)
    plan = plan_drain(roomy, brokers=[2])
    assert (plan.moves[0].bytes_network, plan.unplaced) == (400, ())
    assert plan.quality is not None
    assert (plan.quality.after.highest, plan.quality.highest_transient) == (0.9, 0.9)


@pytest.mark.spec("OPR-30")
def test_empty_replicas_are_spread_by_number() -> None:
    load = one_broker([[0] * 60, [30], [20]])
    drained = plan_drain(load, directories=[(0, "/d0")], options=QUIET)
    doubled = ClusterLoad.from_rows(
        [Broker(0), Broker(1)],
        [Directory(0, "/d0", 1_000, 0), *(Directory(1, path, 1_000, used) for path, used in (("/x", 20), ("/y", 30)))],
        [Replica("t", number, 0, "/d0", 0, True) for number in range(60)],
    )
    raised = plan_replication_factor(doubled, {"t": 2}, QUIET)
    for plan, directories in ((drained, ("/d1", "/d2")), (raised, ("/x", "/y"))):
        arrived = [move.to.log_dirs[-1] for move in plan.moves]
        assert [arrived.count(path) for path in directories] == [30, 30]


def test_each_replica_that_cannot_be_made_is_left_over_and_on_no_broker() -> None:
    load = ClusterLoad.from_rows(
        [Broker(0), Broker(1)],
        [Directory(0, "/d0", 1_000, 10), Directory(1, "/d1", 1_000, 0)],
        [Replica("t", 0, 0, "/d0", 10, True)],
    )
    plan = plan_replication_factor(load, {"t": 4}, QUIET)
    assert [move.to.replicas for move in plan.moves] == [(0, 1)]
    assert [(row.partition, row.broker) for row in plan.unplaced] == [(0, None), (0, None)]


@pytest.mark.spec("CLU-32")
@pytest.mark.parametrize("sizes", [[[70, 60, 50, 40], [10, 5]], [[50, 31, 20], [49], []], [[55, 54, 53], [20, 21, 22]]])
def test_generating_for_all_brokers_levels_as_far_as_balancing_does(sizes: list[list[int]]) -> None:
    load = one_broker(sizes)
    generated, balanced = plan_generate(load, None, [0], QUIET), plan_balance(load, QUIET)
    assert generated.moves
    assert plan_hash(generated) == plan_hash(balanced)
    assert not plan_generate(load, ["t"], [0], PlanOptions(excluded_topics=frozenset({"t"}))).moves


@pytest.mark.spec("CLU-33")
def test_a_new_broker_gets_its_share() -> None:
    replicas = [Replica("t", p, p % 2, "/d", 10, True) for p in range(100)]
    directories = [Directory(b, "/d", 1_000, 500 if b < 2 else 0) for b in range(3)]
    load = ClusterLoad.from_rows([Broker(b) for b in range(3)], directories, replicas)
    plan = plan_add_brokers(load, [2], QUIET)
    assert plan.quality is not None
    assert plan.quality.after.spread < 0.1
    assert all(move.to.replicas == (2,) for move in plan.moves)


@pytest.mark.spec("REB-06")
def test_brokers_solved_apart_come_out_level() -> None:
    load = skewed_disks(disks=4, partitions=200)
    plan = plan_balance(load, QUIET, solve_in_turn)
    assert plan.quality is not None
    assert plan.quality.after.out_of_band == 0
    assert plan_hash(plan) == plan_hash(plan_balance(load, QUIET, solve_in_turn))


@pytest.mark.spec("REB-05")
def test_excluded_and_small_topics_stay() -> None:
    load = skewed_disks()
    assert not plan_balance(load, PlanOptions(excluded_topics=frozenset({"t"}))).moves
    assert not plan_balance(load, PlanOptions(min_size_bytes=100)).moves


@pytest.mark.spec("REB-05")
@pytest.mark.parametrize("bytes_out", [0.0, 100.0])
def test_excluded_topics_keep_their_leaders_and_others_make_up_for_it(bytes_out: float) -> None:
    """Who named a topic's brokers has named its preferred leaders as well."""
    load = led_by_the_first(bytes_out)
    assert any(move.topic == "named" for move in plan_balance(load).moves)
    moves = plan_balance(load, PlanOptions(excluded_topics=frozenset({"named"}))).moves
    assert {move.topic for move in moves} == {"free"}
    # Of forty leaderships the first keeps the named twenty, and that is more than its share already.
    assert sum(move.changes_leader for move in moves) == 20


@pytest.mark.spec("REB-05")
@pytest.mark.parametrize("bytes_out", [0.0, 100.0])
def test_nobody_is_to_lead_from_a_disk_that_failed(bytes_out: float) -> None:
    load = led_by_the_first(bytes_out, failed=True)
    moves = plan_balance(load).moves
    assert moves
    assert {move.to.as_pairs()[move.to.replicas[0]] for move in moves if move.changes_leader} == {"/d0"}


@pytest.mark.spec("REB-05")
def test_a_rack_that_has_to_hold_too_much_is_level_within_itself() -> None:
    """As many racks as replicas: each holds one of everything, and the small rack's disks cannot come into the band."""
    brokers = [Broker(0, "large"), Broker(1, "other"), Broker(2, "small")]
    sizes = {0: 3_000, 1: 3_000, 2: 800}
    replicas = [
        Replica("t", number, broker, f"/disk-{0 if number % 8 else 1}", 20, broker == 0, broker)
        for number in range(40)
        for broker in sizes
    ]
    held = {(broker, path): 0 for broker in sizes for path in ("/disk-0", "/disk-1")}
    for replica in replicas:
        held[replica.broker, replica.log_dir or ""] += replica.size_bytes
    directories = [Directory(broker, path, sizes[broker], used) for (broker, path), used in held.items()]
    load = ClusterLoad.from_rows(brokers, directories, replicas)
    plan = plan_balance(load, PlanOptions(exact_binaries=0, level_leaders=False, level_traffic=False))
    assert plan.quality is not None
    # 800 bytes on 1,600 of the small rack: half full at best, while the level of all is below a fifth.
    assert plan.quality.before.highest == 700 / 800
    assert plan.quality.after.highest <= 0.55


@pytest.mark.spec("REB-05")
def test_the_exact_solution_leaves_no_rack_with_all_that_stood_there_for_each_other() -> None:
    """Both replicas of a rack may go where others of their partition are, but not both."""
    brokers = [Broker(b, "abc"[b % 3]) for b in range(6)]
    for seed in (1, 20, 63, 71):
        chance = random.Random(seed)
        replicas = [
            Replica("t", partition, broker, "/d", size, position == 0, position)
            for partition in range(6)
            for size in [chance.randint(10, 200)]
            for position, broker in enumerate(chance.choice([(0, 3, 1, 2), (0, 3, 1, 5), (1, 4, 0, 2), (2,)]))
        ]
        used = {b: sum(r.size_bytes for r in replicas if r.broker == b) for b in range(6)}
        directories = [Directory(b, "/d", sum(used.values()) // 3, used[b]) for b in range(6)]
        load = ClusterLoad.from_rows(brokers, directories, replicas)
        for move in plan_balance(load, PlanOptions(level_leaders=False, exact_nodes=1)).moves:
            racks = [{broker % 3 for broker in placement.replicas} for placement in (move.from_, move.to)]
            assert len(racks[1]) >= len(racks[0])


@pytest.mark.spec("CLU-34")
def test_a_dead_brokers_replica_is_given_up_though_it_is_alone_on_its_rack() -> None:
    brokers = [Broker(0, "a"), Broker(1, "a"), Broker(2, "b", alive=False)]
    replicas = [Replica("t", 0, broker, "/d", 10, broker == 0, broker) for broker in range(3)]
    load = ClusterLoad.from_rows(brokers, [Directory(b, "/d", 100, 10) for b in range(3)], replicas)
    (move,) = plan_replication_factor(load, {"t": 2}).moves
    assert move.to.replicas == (0, 1)


@pytest.mark.spec("CLU-34")
@pytest.mark.parametrize(
    ("leaves", "kept"),
    [({"cordoned": True}, (1, 2)), ({"online": False}, (1, 2)), ({}, (0, 1))],
)
def test_of_fewer_replicas_those_go_that_lie_where_nothing_is_to_stay(
    leaves: dict[str, bool], kept: tuple[int, ...]
) -> None:
    """A topic that held a scale-down up was given fewer replicas, and kept the two on the brokers that were to go."""
    directories = [Directory(0, "/d", 100, 10, **leaves), *(Directory(b, "/d", 100, 5 * b) for b in (1, 2))]
    replicas = [Replica("t", 0, broker, "/d", 5, broker == 0, broker) for broker in range(3)]
    load = ClusterLoad.from_rows([Broker(b) for b in range(3)], directories, replicas)
    (move,) = plan_replication_factor(load, {"t": 2}).moves
    assert move.to.replicas == kept


@pytest.mark.spec("REB-05", "REB-07")
@pytest.mark.parametrize("unknown", [None, "c"])
def test_a_broker_that_is_down_does_not_take_the_racks_of_the_others_away(unknown: str | None) -> None:
    """Brokers before Kafka 4.0 do not list it, so that nobody knows its rack."""
    racks = {0: "a", 1: "b", 2: unknown, 3: "a", 4: "b"}
    used = {0: 500, 1: 500, 3: 0, 4: 300}
    pairs = [Replica("pair", n, b, "/d", 100, b == 0, b) for n in range(5) for b in (0, 1)]
    half = [Replica("half", 0, 0, "/d", 0, True), Replica("half", 0, 2, None, 0, position=1)]
    brokers = [Broker(broker, rack, alive=broker != 2) for broker, rack in racks.items()]
    directories = [Directory(broker, "/d", 1_000, held) for broker, held in used.items()]
    load = ClusterLoad.from_rows(brokers, directories, [*pairs, *half])
    levelled = plan_balance(load, QUIET).moves
    assert levelled
    drained = plan_drain(load, [2]).moves
    generated = plan_generate(load, ["half"], [0, 1, 3, 4]).moves
    assert [move.topic for move in (*drained, *generated)] == ["half", "half"]
    for move in (*levelled, *drained, *generated):
        assert {racks[broker] for broker in move.to.replicas} == {"a", "b"}


@pytest.mark.spec("REB-05", "CLU-34")
@pytest.mark.parametrize(("alive", "added"), [(False, 3), (True, 2)])
def test_a_replica_more_rather_shares_its_rack_with_one_on_a_dead_broker(alive: bool, added: int) -> None:
    brokers = [Broker(b, "abab"[b], alive=alive or b != 1) for b in range(4)]
    directories = [Directory(b, "/d", 100, held) for b, held in enumerate((5, 5, 10, 20))]
    replicas = [Replica("t", 0, b, "/d", 5, b == 0, b) for b in (0, 1)]
    load = ClusterLoad.from_rows(brokers, directories, replicas)
    (move,) = plan_replication_factor(load, {"t": 3}).moves
    assert move.to.replicas == (0, 1, added)


@pytest.mark.spec("OPR-30")
def test_rows_that_break_a_rule_are_refused_to_who_asked() -> None:
    brokers = [Broker(b, "aab"[b]) for b in range(3)]
    directories = [Directory(b, path, 100, 10, cordoned=path == "/e") for b in range(3) for path in ("/d", "/e")]
    replicas = [Replica("t", 0, broker, "/d", 10, broker == 0, broker) for broker in (0, 2)]
    load = ClusterLoad.from_rows(brokers, directories, replicas)
    with pytest.raises(PlanError, match="t-0: on fewer racks than before"):
        plan_explicit(load, rows_from_spec([{"topic": "t", "partition": 0, "replicas": [0, 1]}]))
    with pytest.raises(PlanError, match="t-0: /e on broker 0 takes no replicas"):
        plan_explicit(
            load, rows_from_spec([{"topic": "t", "partition": 0, "replicas": [0, 2], "logDirs": ["/e", "/d"]}])
        )


@pytest.mark.spec("REB-04", "REB-05")
def test_what_is_forecast_to_be_deleted_still_takes_its_room_until_then() -> None:
    """The first disk is nearly full now and will be nearly empty; what comes to it must fit beside what is there."""
    now, ahead = one_broker([[900], [100] * 8]), one_broker([[10], [100] * 8])
    assert check_plan(now, plan_balance(ahead, QUIET), QUIET.high_water)
    assert plan_balance(ahead, QUIET, now=now).moves == ()
    roomy, later = one_broker([[500], [100] * 8]), one_broker([[10], [100] * 8])
    plan = plan_balance(later, QUIET, now=roomy)
    assert plan.moves
    assert not check_plan(roomy, plan, QUIET.high_water)
    assert not check_plan(later, plan, QUIET.high_water)
