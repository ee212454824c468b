"""Forecasts, and refusing to plan from holes."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.moves.brokers import Brokers
from tests.rebalance.skewed import GIB, brokers_of, directories_of, skewed_cluster

from ballast_planner import Broker, ClusterLoad, Directory, Move, Placement, Plan, PlanOptions, Replica, plan_balance
from ballast_rebalance import admin, job
from ballast_rebalance.admin import measure_by_admin, measured_of
from ballast_rebalance.forecast import predict_sizes, sustained_growth
from ballast_rebalance.job import JobOptions, Outcome, _with_order, run_once
from ballast_rebalance.measured import (
    REPLICA_COLUMNS,
    Measured,
    Refusal,
    check,
    require_volumes,
    shared_volumes,
    with_capacity,
    with_weights,
)
from ballast_rebalance.metrics_source import (
    CORDONED,
    COUNT,
    OFFLINE,
    SILENT,
    TOTAL,
    USED,
    MetricsOptions,
    _complete,
    _directories,
    _offline,
    _silent,
    _with_growth,
    _without_replicas,
)
from ballast_rebalance.proposal import ProposalOptions
from ballast_rebalance.worth import Threshold, require_worth

NAN = float("nan")


def measured() -> Measured:
    replicas = skewed_cluster()
    rows = [
        (r.topic, r.partition, r.broker, r.log_dir, r.size, r.position == 0, r.position, *[NAN] * 5) for r in replicas
    ]
    frame = pd.DataFrame(rows, columns=list(REPLICA_COLUMNS))
    return Measured(1_700_000_000.0, brokers_of(replicas), directories_of(replicas), frame, True)


@pytest.mark.spec("REB-04")
def test_growth_is_capped_by_what_retention_left_before() -> None:
    size, growth = np.full(6, 100.0), np.array([1.0, 1.0, -1.0, NAN, 1.0, 1.0])
    peak, rise = np.array([NAN, 130.0, 190.0, NAN, 100.0, 110.0]), np.array([NAN, 0.0, 0.0, NAN, NAN, 0.5])
    soon = predict_sizes(size, growth, peak, rise, 50.0)
    assert soon.tolist() == [150.0, 130.0, 50.0, 100.0, 100.0, 135.0]
    late = predict_sizes(size, growth, peak, rise, 500.0)
    assert late.tolist() == [600.0, 130.0, 0.0, 100.0, 100.0, 360.0], "the last takes in more than retention takes"


@pytest.mark.spec("REB-04")
def test_bytes_that_were_taken_at_once_are_not_taken_again() -> None:
    """At the beginning of the window, in its middle, now; a rate per second over a window of 100 s."""
    cases = {
        (900.0, 900.0, 500.0): 0.0,  # retention came by lately
        (900.0, 500.0, 500.0): 0.0,  # or a while ago
        (900.0, 500.0, 600.0): 2.0,  # since then it grows
        (900.0, 950.0, 500.0): 1.0,
        (900.0, 700.0, 600.0): -2.0,  # it is being emptied
        (900.0, NAN, 600.0): 0.0,  # who knows
        (500.0, 500.0, 900.0): 4.0,
    }
    before, halfway, size = (np.array(column) for column in zip(*cases, strict=True))
    assert sustained_growth(size, halfway, before, 100.0).tolist() == list(cases.values())
    assert np.isnan(sustained_growth(size, halfway, before * NAN, 100.0)).all()


@pytest.mark.spec("REB-04")
def test_all_replicas_of_a_partition_grow_alike() -> None:
    """A follower that holds a little less is no sign that retention has been at work."""
    now = measured()
    size = now.replicas["size"] - (now.replicas["position"] == 1) * 5_000
    grown = replace(now, replicas=now.replicas.assign(size=size, growth=1.0))
    more = grown.load(3_600.0).replicas.size - grown.load().replicas.size
    assert more.tolist() == [3_600] * more.size


@pytest.mark.spec("REB-04")
def test_the_forecast_enters_the_load_and_its_directory() -> None:
    now = measured()
    grown = replace(now, replicas=now.replicas.assign(growth=1_000.0))
    before, after = grown.load(0.0), grown.load(3_600.0)
    assert (after.replicas.size - before.replicas.size).tolist() == [3_600_000] * before.replicas.size.size
    assert after.directories.used.sum() - before.directories.used.sum() == 3_600_000 * before.replicas.size.size


@pytest.mark.spec("REB-04")
def test_nothing_is_forecast_to_shrink_below_nothing() -> None:
    """Neither a replica that lags behind the one that is emptied, nor a directory that was read before its replicas."""
    now = measured()
    lags = now.replicas["size"].where(now.replicas["position"] == 0, 1_000)
    emptied = replace(
        now,
        replicas=now.replicas.assign(size=lags, growth=-1.0),
        directories=[row._replace(used_bytes=1_000) for row in now.directories],
    )
    later = emptied.load(3_600.0)
    assert later.replicas.size.min() == 0
    assert later.replicas.size.max() == now.replicas["size"].max() - 3_600
    assert later.directories.used.sum() == later.replicas.size.sum()


def test_a_whole_measurement_passes() -> None:
    check(measured())


@pytest.mark.spec("REB-08")
@pytest.mark.parametrize(
    ("spoil", "reason", "says"),
    [
        (lambda m: replace(m, directories=[]), "MetricsMissing", "no log directories"),
        (lambda m: replace(m, replicas=m.replicas.iloc[:0]), "MetricsMissing", "no replicas"),
        (
            lambda m: replace(m, directories=m.directories[1:]),
            "MetricsPartial",
            "capacity of /disk0 on broker 1 is not",
        ),
        (lambda m: replace(m, replicas=m.replicas[m.replicas["broker"] != 3]), "MetricsPartial", "fewer replicas"),
        (
            lambda m: replace(m, replicas=m.replicas[m.replicas["partition"] != 7]),
            "MetricsPartial",
            "1 partition of orders cannot",
        ),
        (
            lambda m: replace(m, replicas=pd.concat([m.replicas, m.replicas.iloc[:1].assign(log_dir="/disk1")])),
            "MetricsPartial",
            "it is moving",
        ),
        (lambda m: replace(m, replicas=m.replicas.assign(leader=True)), "MetricsPartial", "two leaders"),
        # As when each partition of a topic has a replica on a broker that was away for longer than is remembered.
        (
            lambda m: replace(m, replicas=m.replicas[m.replicas["position"] == 1]),
            "MetricsPartial",
            "replicas of 60 partitions are not in the metrics, first orders-0",
        ),
        (
            lambda m: replace(m, replicas=m.replicas.assign(position=1)),
            "MetricsPartial",
            "replicas of 60 partitions are not in the metrics, first orders-0",
        ),
    ],
)
def test_holes_are_refused_with_their_reason(spoil: object, reason: str, says: str) -> None:
    assert callable(spoil)
    with pytest.raises(Refusal, match=says) as caught:
        check(spoil(measured()))
    assert caught.value.reason == reason


@pytest.mark.spec("REB-08")
def test_two_clusters_under_one_label_are_told_apart_or_refused() -> None:
    rows = [(name, "1", "/a", None, 10.0) for name in (USED, TOTAL, TOTAL)]
    with pytest.raises(Refusal, match="--cluster-label") as caught:
        _directories(pd.DataFrame(rows, columns=["name", "broker", "log_dir", "rack", "value"]))
    assert caught.value.reason == "MetricsInconsistent"


@pytest.mark.spec("REB-08")
def test_a_directory_that_failed_is_told_where_its_replicas_are_missing() -> None:
    rows = [(TOTAL, "1", "/a", 10.0), (OFFLINE, "1", "/a", 0.0), (OFFLINE, "1", "/b", 1.0)]
    found = _offline(pd.DataFrame(rows, columns=["name", "broker", "log_dir", "value"]))
    assert found == ["/b on broker 1 is offline: what lies there is in no metrics"]


@pytest.mark.spec("REB-08")
def test_nothing_is_put_on_a_disk_that_does_not_answer() -> None:
    """It may be about to fail, and stands as empty as it did."""
    rows = [(name, "1", path, None, 10.0) for name in (USED, TOTAL) for path in ("/a", "/b", "/c")]
    rows += [(SILENT, "1", "/a", None, 0.0), (SILENT, "1", "/b", None, 1.0), (CORDONED, "1", "/c", None, 1.0)]
    small = pd.DataFrame(rows, columns=["name", "broker", "log_dir", "rack", "value"])
    assert [(row.path, row.cordoned, row.online) for row in _directories(small)] == [
        ("/a", False, True), ("/b", True, True), ("/c", True, True),
    ]  # fmt: skip
    assert _silent(small) == ["the disk of /b on broker 1 does not answer: nothing is moved there"]


@pytest.mark.spec("REB-04")
def test_a_broker_without_history_among_others_is_told() -> None:
    frame = measured().replicas.assign(leader=1.0, bytes_in=1.0, before=1.0)
    assert _complete(frame.copy()) == []
    (told,) = _complete(frame.assign(before=frame["before"].where(frame["broker"] != 2)))
    assert told.startswith("the history of broker 2 is shorter")
    (none,) = _complete(frame.assign(before=NAN))
    assert none.startswith("the history is shorter")


@pytest.mark.spec("REB-04")
def test_a_partition_that_is_younger_than_the_window_is_forecast_from_what_is_known_of_it() -> None:
    """It is the new topic that fills a disk. By no more than it would be with its bytes spread over the window."""
    frame = measured().replicas
    frame = frame[(frame["topic"] == "orders") & (frame["partition"] == 0)].assign(
        size=[900.0, 880.0], halfway=NAN, peak=900.0, peak_before=NAN, falls=0.0
    )
    known = {"before": (300.0, 600.0, 6.0), "young": (NAN, 30.0, 8.7), "just seen": (NAN, 900.0, 0.0)}
    for name, (before, lowest, growth) in known.items():
        found = _with_growth(frame.assign(before=before, lowest=lowest), 100.0)
        assert found["growth"].tolist() == [growth] * 2, name
        assert found["peak"].isna().all()
    emptied = _with_growth(frame.assign(before=NAN, lowest=30.0, falls=2.0, peak=950.0), 100.0)
    ahead = replace(measured(), replicas=emptied[list(REPLICA_COLUMNS)]).load(1_000.0).replicas.size.tolist()
    assert ahead == [950, 930], "where retention is at work already it grows to its peak"
    higher = _with_growth(frame.assign(before=NAN, lowest=30.0, falls=2.0, peak=950.0, peak_before=900.0), 100.0)
    assert higher["rise"].tolist() == [1.0, 1.0], "from the first half of the window to the second"


@pytest.mark.spec("REB-08")
def test_only_what_is_worth_it_is_proposed() -> None:
    load = measured().load()
    plan = plan_balance(load)
    require_worth(plan, Threshold())
    with pytest.raises(Refusal, match="better, less than") as caught:
        require_worth(plan, Threshold(min_improvement=0.9))
    assert caught.value.reason == "TooLittleToGain"
    assert plan.quality is not None
    higher = replace(plan.quality.after, highest=plan.quality.before.highest + 0.01)
    with pytest.raises(Refusal, match="would become fuller") as caught:
        require_worth(replace(plan, quality=replace(plan.quality, after=higher)), Threshold())
    assert caught.value.reason == "WouldMakeWorse"
    level = replace(measured(), directories=[Directory(d.broker, d.path, 100 * d.used_bytes, d.used_bytes)
                                             for d in measured().directories])  # fmt: skip
    with pytest.raises(Refusal) as balanced:
        require_worth(plan_balance(level.load()), Threshold())
    assert balanced.value.reason == "Balanced"


@pytest.mark.spec("REB-08")
def test_the_first_moves_of_many_are_worth_what_all_of_them_gain() -> None:
    """Three disks are full and three are empty: two moves alone leave a full one and an empty one, and so would any two
    for ever."""
    places = {p: (0, f"/d{p % 3}") for p in range(60)}
    options = PlanOptions(max_moves=2, exact_binaries=0)
    moved: list[int] = []

    def look() -> Plan:
        rows = [Replica("t", p, broker, path, 15, True) for p, (broker, path) in places.items()]
        used = Counter(row.log_dir for row in rows)
        directories = [Directory(0, f"/d{d}", 400, 15 * used[f"/d{d}"]) for d in range(6)]
        return plan_balance(ClusterLoad.from_rows([Broker(0)], directories, rows), options)

    first = look()
    assert first.quality is not None
    assert first.quality.aim is not None
    assert first.quality.after.spread == first.quality.before.spread == 0.75
    assert job._sentence(first).endswith(
        "; 25 more partitions to follow in later plans, for highest fill 41.2% and spread 7.5% in the end"
    )
    while moves := look().moves:
        require_worth(look(), Threshold())
        moved += [move.partition for move in moves]
        places |= {move.partition: (0, move.to.log_dirs[0]) for move in moves}
    assert len(set(moved)) == len(moved), "none twice"
    assert len(moved) == 27


@pytest.mark.spec("REB-08")
def test_first_moves_that_by_themselves_lead_nowhere_are_not_proposed() -> None:
    plan = plan_balance(measured().load(), PlanOptions(max_moves=5))
    assert plan.quality is not None
    stays = replace(plan.quality, after=plan.quality.before)
    require_worth(plan, Threshold())
    with pytest.raises(Refusal, match=r"^5 moves of the \d+ that it takes would make nothing more level") as caught:
        require_worth(replace(plan, quality=stays), Threshold())
    assert caught.value.reason == "MaxMovesTooFew"
    with pytest.raises(Refusal, match="better, less than") as little:
        require_worth(replace(plan, quality=stays), Threshold(min_improvement=0.9))
    assert little.value.reason == "TooLittleToGain", "nor would more of them be worth it"
    with pytest.raises(Refusal) as level:
        require_worth(replace(plan, quality=stays), Threshold(min_spread=0.99))
    assert level.value.reason == "Balanced"


def test_directories_on_one_volume_are_told_and_can_be_levelled_by_their_bytes() -> None:
    total, used = 100 * 2**30, 60 * 2**30
    shared = replace(
        measured(), directories=[d._replace(total_bytes=total, used_bytes=used) for d in measured().directories]
    )
    assert len(shared_volumes(shared)) == 3
    assert not plan_balance(shared.load(), PlanOptions(level_leaders=False)).moves
    apart = with_capacity(shared, 40 * 2**30)
    assert [d.used_bytes for d in apart.directories] == [d.used_bytes for d in measured().directories]
    assert plan_balance(apart.load(), PlanOptions(level_leaders=False)).moves
    assert shared_volumes(measured()) == []
    full = [row._replace(used_bytes=row.total_bytes) for row in measured().directories]
    assert shared_volumes(replace(measured(), directories=full)) == [], "disks of their own are as alike when full"


@pytest.mark.spec("REB-08")
def test_a_plan_from_the_level_of_a_volume_that_directories_share_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each seems as full as both together: twice too much would go, and with the next proposal come back."""
    places = [(0, "/a" if p % 2 else "/b") for p in range(36)] + [(1, "/a" if p % 2 else "/b") for p in range(8)]
    rows = [("t", p, b, d, 2 * GIB, True, 0, *[NAN] * 5) for p, (b, d) in enumerate(places)]
    frame = pd.DataFrame(rows, columns=list(REPLICA_COLUMNS))
    brokers = [Broker(0), Broker(1)]
    used = {0: 73 * GIB, 1: 17 * GIB}
    shared = [Directory(broker, path, 100 * GIB, used[broker]) for broker in (0, 1) for path in ("/a", "/b")]
    own = [row._replace(used_bytes=used[row.broker] // 2) for row in shared]
    found = {"of": Measured(0.0, brokers, shared, frame, True)}
    monkeypatch.setattr(job, "measure", lambda *_: found["of"])
    options = JobOptions(proposal=ProposalOptions("c"), bootstrap="h:1", horizon_s=0.0)
    spark: Any = None
    refused = run_once(spark, options)
    assert (refused.reason, "--capacity" in refused.message) == ("CapacityUnknown", True)
    assert not refused.pending
    assert run_once(spark, replace(options, capacity_bytes=50 * GIB)).reason == "Proposed"
    found["of"] = replace(found["of"], directories=own)
    assert run_once(spark, options).reason == "Proposed", "disks of their own that are as level"


@pytest.mark.spec("REB-08")
@pytest.mark.parametrize(
    ("held", "to", "refused"),
    [
        (10 * GIB, Placement((1,), ("/d",)), True),
        (10 * GIB, Placement((0,), ("/b",)), False),  # what stays on the broker changes no broker's level
        (GIB // 4, Placement((1,), ("/d",)), False),  # half a hundredth of the volume
    ],
)
def test_a_shared_volume_matters_only_to_a_plan_that_it_could_lead_astray(
    held: int, to: Placement, refused: bool
) -> None:
    rows = [("t", number, 0, path, held, True, 0, *[NAN] * 5) for number, path in enumerate(("/a", "/b"))]
    frame = pd.DataFrame(rows, columns=list(REPLICA_COLUMNS))
    directories = [Directory(0, "/a", 100 * GIB, 21 * GIB), Directory(0, "/b", 100 * GIB, 21 * GIB)]
    shared = Measured(0.0, [Broker(0), Broker(1)], [*directories, Directory(1, "/d", 100 * GIB, 0)], frame, True)
    plan = Plan((Move("t", 0, Placement((0,), ("/a",)), to, held, 0),))
    with pytest.raises(Refusal, match="broker 0 lie on one volume") if refused else contextlib.nullcontext():
        require_volumes(shared, plan)


@pytest.mark.spec("REB-05", "REB-08")
def test_partitions_on_one_rack_are_spread_though_the_disks_are_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where racks were given to brokers that had none: with the next rack all their replicas would be gone."""
    spark: Any = None
    options = JobOptions(proposal=ProposalOptions("c"), bootstrap="h:1", horizon_s=0.0)
    brokers = [Broker(broker, rack) for broker, rack in enumerate("aabb")]

    def look(places: Mapping[int, tuple[int, ...]], racks: bool = True) -> Outcome:
        rows = [
            ("t", partition, broker, "/d", GIB, position == 0, position, *[NAN] * 5)
            for partition, replicas in places.items()
            for position, broker in enumerate(replicas)
        ]
        frame = pd.DataFrame(rows, columns=list(REPLICA_COLUMNS))
        held = frame.groupby("broker")["size"].sum()
        directories = [Directory(broker.id, "/d", 100 * GIB, int(held[broker.id])) for broker in brokers]
        found = Measured(0.0, [b if racks else b._replace(rack=None) for b in brokers], directories, frame, True)
        monkeypatch.setattr(job, "measure", lambda *_: found)
        return run_once(spark, options)

    places = {partition: ((0, 1), (2, 3), (1, 0), (3, 2))[partition % 4] for partition in range(40)}
    assert look(places, racks=False).reason == "Balanced"
    proposed = look(places)
    assert (proposed.reason, proposed.message[:36]) == ("Proposed", "40 partitions come on more racks; 40")
    assert proposed.plan is not None
    for move in proposed.plan.moves:
        assert {brokers[broker].rack for broker in move.to.replicas} == {"a", "b"}
        assert move.from_.replicas[0] == move.to.replicas[0], "who leads goes on leading"
    after = look({move.partition: move.to.replicas for move in proposed.plan.moves})
    assert after.reason in ("Balanced", "TooLittleToGain"), "nothing that would undo it"


@pytest.mark.spec("REB-05", "REB-08")
def test_a_broker_without_a_rack_among_others_is_told_with_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is proposed may put all replicas of a partition into one rack: who approves it has to know."""
    spark: Any = None
    options = JobOptions(proposal=ProposalOptions("c"), bootstrap="h:1", horizon_s=0.0)

    def notes(*racks: str | None, dead: int | None = None) -> list[str]:
        brokers = [Broker(index + 1, rack, alive=index != dead) for index, rack in enumerate(racks)]
        found = replace(measured(), brokers=brokers)
        monkeypatch.setattr(job, "measure", lambda *_: found)
        return [text for text in run_once(spark, options).lacks if "racks" in text]

    assert notes("a", None, "b") == ["racks are not kept to: of broker 2 none is known"]
    assert notes(None, None, None) == notes("a", "b", "c") == notes("a", None, "b", dead=1) == []


Rows = list[dict[str, Any]]


def admin_answers() -> tuple[Rows, Rows, Rows]:
    partition = {"error_code": 0, "partition_index": 0, "leader_id": 2, "replica_nodes": [2, 1], "isr_nodes": [2]}
    topics: Rows = [{"error_code": 0, "name": "t", "partitions": [partition]}]
    brokers: Rows = [{"broker_id": 1, "rack": "a"}, {"broker_id": 2, "rack": "b"}]
    held = {"partition_index": 0, "partition_size": 40, "offset_lag": 0, "is_future_key": False}
    log_dirs = [
        {
            "broker": broker,
            "log_dirs": [
                {
                    "error_code": 0,
                    "log_dir": "/d",
                    "total_bytes": 100,
                    "usable_bytes": 50,
                    "topics": [{"name": "t", "partitions": [dict(held)]}],
                }
            ],
        }
        for broker in (1, 2)
    ]
    return topics, brokers, log_dirs


@pytest.mark.spec("REB-03")
def test_brokers_answers_become_a_load() -> None:
    topics, brokers, log_dirs = admin_answers()
    found = measured_of(topics, brokers, log_dirs, 0.0)
    check(found)
    load = found.load()
    assert load.brokers.ids[load.replicas.broker].tolist() == [2, 1]
    assert load.directories.used.tolist() == [50, 50]
    assert load.replicas.leader.tolist() == [True, False]


@pytest.mark.spec("REB-03")
def test_partitions_of_one_topic_may_differ_in_their_replicas() -> None:
    """As when a change of the replication factor was cancelled half-way: the brokers know that none is missing."""
    topics, brokers, log_dirs = admin_answers()
    alone = {"error_code": 0, "partition_index": 1, "leader_id": 1, "replica_nodes": [1], "isr_nodes": [1]}
    topics[0]["partitions"].append(alone)
    held = {"partition_index": 1, "partition_size": 9, "offset_lag": 0, "is_future_key": False}
    log_dirs[0]["log_dirs"][0]["topics"][0]["partitions"].append(held)
    found = measured_of(topics, brokers, log_dirs, 0.0)
    check(found)
    exported = replace(found, all_known=False)
    with pytest.raises(Refusal, match="fewer replicas of 1 partition are in the metrics"):
        check(exported)
    check(_with_order(exported, found))


@pytest.mark.spec("REB-03")
def test_what_lies_on_a_disk_that_is_away_does_not_make_the_metrics_stale() -> None:
    """Its broker has no series of it, and tells only that the directory failed."""
    topics, brokers, log_dirs = admin_answers()
    log_dirs[0]["log_dirs"][0] |= {"error_code": 56, "topics": []}
    asked = measured_of(topics, brokers, log_dirs, 0.0)
    described = asked.replicas[asked.replicas["log_dir"].notna()]
    scraped = described.assign(size=described["size"] + 7)
    exported = replace(asked, replicas=scraped, directories=asked.directories[1:], all_known=False)
    both = _with_order(exported, asked)
    check(both)
    load = both.load(3_600.0)
    size = int(described["size"].iloc[0])
    assert load.replicas.size.tolist() == [size + 7, size], "as the metrics say, where they say something"
    assert load.brokers.ids[load.replicas.broker].tolist() == [2, 1]
    assert load.replicas.directory.tolist() == [0, -1]
    elsewhere = replace(exported, replicas=described.assign(log_dir="/old"))
    with pytest.raises(Refusal, match="the metrics are behind on 2 replicas"):
        _with_order(elsewhere, asked)


@pytest.mark.spec("REB-03")
@pytest.mark.timeout(120)
def test_a_broker_that_is_away_is_not_asked(tmp_path: Path) -> None:
    """Those that answer list it, with its rack; its replicas are as large as their partition's others."""
    with Brokers(tmp_path, 3, [0, 1, 2], racks=["a", "b", "c"]) as three:
        three.create("orders", [[0, 1], [2, 0]])
        three[2].kill()
        three.until_nobody_is_told_of(2)
        found = measure_by_admin(three.bootstrap)
    assert [(row.id, row.rack, row.alive) for row in found.brokers] == [(0, "a", True), (1, "b", True), (2, "c", False)]
    check(found)
    assert {row.broker for row in found.directories} == {0, 1}
    assert found.load().replicas.directory.tolist().count(-1) == 1


@pytest.mark.spec("REB-08")
@pytest.mark.timeout(120)
def test_a_broker_that_hangs_but_is_not_fenced_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    describe = admin.Admin.describe_log_dirs
    with Brokers(tmp_path, 2, [0, 1]) as two:

        def hangs(client: Any, *asked: object, **more: object) -> object:
            two[1].pause()
            return describe(client, *asked, **more)

        two.create("orders", [[0, 1]])
        monkeypatch.setattr(admin.Admin, "describe_log_dirs", hangs)
        with pytest.raises(Refusal, match=r"broker 1 does not describe its directories: .*RequestTimedOut") as caught:
            measure_by_admin(two.bootstrap, {"request_timeout_ms": 1000})
    assert caught.value.reason == "ClusterUnavailable"


class Moving:
    """A cluster in which a reassignment ends, or begins, while it is described."""

    def __init__(self, *moving: bool) -> None:
        self._moving: list[dict[tuple[str, int], object]] = [{("orders", 0): {}} if each else {} for each in moving]
        self._topics, self._brokers, self._log_dirs = admin_answers()

    def list_partition_reassignments(self) -> object:
        return self._moving.pop(0)

    def describe_topics(self) -> object:
        return self._topics

    def describe_cluster(self) -> object:
        return {"brokers": self._brokers}

    def describe_log_dirs(self, partitions: dict[str, list[int]], brokers: list[int]) -> object:
        assert partitions == {topic["name"]: [0] for topic in self._topics}
        return [answer for answer in self._log_dirs if answer["broker"] in brokers]

    def close(self) -> None:
        pass


@pytest.mark.spec("REB-08")
@pytest.mark.parametrize("moving", [(True, False), (False, True)])
def test_a_reassignment_that_ends_or_begins_meanwhile_is_noticed(
    moving: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what it adds, or was about to give up, would be taken for replicas that are to stay."""
    monkeypatch.setattr(admin, "Admin", lambda **_: Moving(*moving))
    with pytest.raises(Refusal) as caught:
        measure_by_admin("h:1")
    assert caught.value.reason == "ReassignmentInProgress"
    monkeypatch.setattr(admin, "Admin", lambda **_: Moving(False, False))
    assert measure_by_admin("h:1").replicas["broker"].nunique() == 2


def test_a_cluster_that_is_away_costs_nothing_that_stays() -> None:
    before = set(threading.enumerate())
    with pytest.raises(Refusal, match="is down"):
        measure_by_admin("127.0.0.1:1", {"client_id": "away", "bootstrap_timeout_ms": 100})
    assert not [each.name for each in set(threading.enumerate()) - before if each.name.startswith("kafka-io-")]


@pytest.mark.spec("DIR-44", "REB-03")
@pytest.mark.parametrize("capacity", [None, 100])
def test_a_directory_that_its_broker_says_is_cordoned_takes_nothing(capacity: int | None) -> None:
    topics, brokers, log_dirs = admin_answers()
    drained = log_dirs[0]["log_dirs"][0]
    drained |= {"is_cordoned": True} | ({} if capacity is None else {"total_bytes": -1, "usable_bytes": -1})
    load = measured_of(topics, brokers, log_dirs, 0.0, capacity).load()
    assert load.directories.cordoned.tolist() == [True, False]


@pytest.mark.spec("REB-08")
def test_metrics_that_are_no_numbers_are_refused() -> None:
    odd = float("inf")
    for broker, value in (("1", NAN), ("1", odd), (None, 10.0), ("one", 10.0)):
        rows = [(name, broker, "/a", None, value) for name in (USED, TOTAL)]
        with pytest.raises(Refusal) as caught:
            _directories(pd.DataFrame(rows, columns=["name", "broker", "log_dir", "rack", "value"]))
        assert caught.value.reason == "MetricsInconsistent"


@pytest.mark.spec("REB-08")
@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [("total_bytes", -1, "CapacityUnknown"), ("error_code", 29, "ClusterUnavailable")],
)
def test_brokers_answers_that_do_not_say_enough(field: str, value: int, reason: str) -> None:
    topics, brokers, log_dirs = admin_answers()
    log_dirs[0]["log_dirs"][0][field] = value
    with pytest.raises(Refusal) as caught:
        measured_of(topics, brokers, log_dirs, 0.0)
    assert caught.value.reason == reason


@pytest.mark.spec("REB-08")
def test_a_cluster_without_topics_is_level() -> None:
    """A new one has none; where the brokers hold logs, topics are only not shown to who asks."""
    _, brokers, log_dirs = admin_answers()
    with pytest.raises(Refusal) as hidden:
        check(measured_of([], brokers, log_dirs, 0.0))
    assert hidden.value.reason == "MetricsMissing"
    for answer in log_dirs:
        for log_dir in answer["log_dirs"]:
            log_dir["topics"] = []
    with pytest.raises(Refusal) as empty:
        measured_of([], brokers, log_dirs, 0.0)
    assert empty.value.reason == "Balanced"


@pytest.mark.spec("REB-08")
@pytest.mark.timeout(120)
def test_a_new_cluster_is_level_before_its_metrics_have_any_replicas(tmp_path: Path) -> None:
    """Which they do not have until there are topics: only the brokers know that nothing is missing."""
    with Brokers(tmp_path, 1, [0]) as one:
        metrics = MetricsOptions("http://127.0.0.1:1")
        outcome = run_once(None, JobOptions(ProposalOptions("demo"), metrics=metrics, bootstrap=one.bootstrap))  # type: ignore[arg-type]
    assert (outcome.reason, outcome.message) == ("Balanced", "there are no replicas yet: nothing is to be levelled")


@pytest.mark.spec("REB-08")
@pytest.mark.parametrize(
    ("counts", "reason"), [((0.0, 0.0), "Balanced"), ((0.0, 3.0), "MetricsMissing"), ((0.0,), "MetricsMissing")]
)
def test_metrics_alone_tell_a_new_cluster_from_one_without_series_of_replicas(
    counts: tuple[float, ...], reason: str
) -> None:
    """Where the job may not ask the brokers, a cluster without topics failed its runs for ever."""
    rows = [(TOTAL, str(broker), 10.0) for broker in range(2)]
    rows += [(COUNT, str(broker), count) for broker, count in enumerate(counts)]
    assert _without_replicas(pd.DataFrame(rows, columns=["name", "broker", "value"])).reason == reason


def test_a_move_in_progress_is_waited_for_and_an_old_broker_given_a_capacity() -> None:
    topics, brokers, log_dirs = admin_answers()
    log_dirs[0]["log_dirs"][0]["total_bytes"] = -1
    assert measured_of(topics, brokers, log_dirs, 0.0, 70).directories[0] == Directory(1, "/d", 70, 40)
    log_dirs[0]["log_dirs"][0]["topics"][0]["partitions"][0]["is_future_key"] = True
    with pytest.raises(Refusal) as caught:
        measured_of(topics, brokers, log_dirs, 0.0, 70)
    assert caught.value.reason == "ReassignmentInProgress"


@pytest.mark.spec("REB-08")
def test_a_replica_that_nobody_describes_is_not_taken_for_empty() -> None:
    topics, brokers, log_dirs = admin_answers()
    log_dirs[1]["log_dirs"][0]["topics"] = []
    sizes = measured_of(topics, brokers, log_dirs, 0.0).replicas.set_index("broker")["size"]
    assert sizes.to_dict() == {1: 40, 2: 40}  # as large as the other one, though the leader is silent
    log_dirs[0]["log_dirs"][0]["topics"] = []
    with pytest.raises(Refusal, match="no broker describes a log of 1 partition, first t-0") as caught:
        measured_of(topics, brokers, log_dirs, 0.0)
    assert caught.value.reason == "MetricsPartial"
    # A broker that is away cannot describe it, and somebody has to know that its size is not known.
    lacks = measured_of(topics, brokers, log_dirs[:1], 0.0).lacks
    assert list(lacks[1:]) == ["the size of 1 partition is unknown, first t-0: what has them is away"]


@pytest.mark.spec("REB-08")
def test_brokers_that_are_offline_are_named() -> None:
    """Whether they are listed, as by the present protocol, or only as those of replicas."""
    topics, brokers, log_dirs = admin_answers()
    brokers[1]["is_fenced"] = True
    told = "broker 2 is offline: its directories are unknown, and nothing is moved there"
    assert list(measured_of(topics, brokers, log_dirs[:1], 0.0).lacks[1:]) == [told]
    assert list(measured_of(topics, brokers[:1], log_dirs[:1], 0.0).lacks[1:]) == [told]


@pytest.mark.spec("OPR-40")
def test_a_volume_with_half_the_weight_is_kept_half_as_full() -> None:
    full = measured()
    names = sorted({row.path for row in full.directories})
    light = names[-1].rsplit("/", 1)[-1]
    assert light in names[-1].split("/")
    half = with_weights(full, {light: 50}, "demo")
    assert {r.total_bytes / f.total_bytes for r, f in zip(half.directories, full.directories, strict=True)} == {0.5, 1}
    assert [row.used_bytes for row in half.directories] == [row.used_bytes for row in full.directories]
    with pytest.raises(Refusal, match="no directory lies on volume elsewhere"):
        with_weights(full, {"elsewhere": 50}, "demo")
    embedded = replace(full, directories=[Directory(2, "/data/claims/slow-demo-2/data", 1_000, 0)])
    assert with_weights(embedded, {"slow": 20}, "demo").directories[0].total_bytes == 200


@pytest.mark.spec("OPR-40")
@pytest.mark.parametrize("volume", ["data", "ballast", "lib"])
def test_a_volume_may_be_called_what_other_parts_of_paths_are_called(volume: str) -> None:
    paths = [f"/var/lib/ballast/{name}/data" for name in (volume, "fast")]
    two = replace(measured(), directories=[Directory(1, path, 1_000, 0) for path in paths])
    assert [row.total_bytes for row in with_weights(two, {volume: 50}, "demo").directories] == [500, 1_000]
    both = with_weights(two, {volume: 50, "fast": 20}, "demo")
    assert [row.total_bytes for row in both.directories] == [500, 200]
