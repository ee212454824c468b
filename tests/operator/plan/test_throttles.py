"""Throttles are set for the moves, shared between plans, and always put back as they were."""

import pytest
from making import move, topic_view, view

from ballast_operator.model.kafka import BROKER, TOPIC, ConfigId, KafkaView
from ballast_operator.model.reassignment import Throttle, ThrottleRecord
from ballast_operator.plan.throttles import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    INTRA_RATE,
    LEADER_RATE,
    LEADER_REPLICAS,
    Share,
    fingerprint,
    plan_throttles,
    wanted_throttles,
)

RATE = ConfigId(BROKER, "0", LEADER_RATE)
LIST = ConfigId(TOPIC, "orders", LEADER_REPLICAS)


def seen(rate: str | None = None, replicas: str | None = None, brokers: tuple[int, ...] = (0, 1, 2)) -> KafkaView:
    return view(
        {"orders": topic_view((0, 1))},
        brokers=brokers,
        broker_configs={b: {LEADER_RATE: rate} if b == 0 and rate else {} for b in brokers},
        topic_configs={"orders": {LEADER_REPLICAS: replicas} if replicas else {}},
    )


def record(config: ConfigId, prior: str | None, *applied: str) -> ThrottleRecord:
    return ThrottleRecord(*config, prior, applied)


def test_what_a_move_between_brokers_needs() -> None:
    wants = wanted_throttles([move(((0, "/a"), (1, "/a")), ((0, "/a"), (2, "/a")))], Throttle(inter_broker="1Ki"))
    assert wants == {
        **{ConfigId(BROKER, str(b), key): "1024" for b in (0, 1, 2) for key in (LEADER_RATE, FOLLOWER_RATE)},
        ConfigId(TOPIC, "orders", LEADER_REPLICAS): "0:0,0:1",
        ConfigId(TOPIC, "orders", FOLLOWER_REPLICAS): "0:2",
    }


def test_what_a_move_between_directories_needs() -> None:
    wants = wanted_throttles([move(((0, "/a"),), ((0, "/b"),))], Throttle(intra_broker="2M", inter_broker="1M"))
    assert wants == {ConfigId(BROKER, "0", INTRA_RATE): "2000000"}


@pytest.mark.spec("OPR-35")
def test_the_prior_value_is_recorded_with_what_is_to_be_applied() -> None:
    plan = plan_throttles([Share("r", {RATE: "100"}, ())], seen(rate="7"))
    assert plan.records["r"] == (record(RATE, "7", "100"),)
    assert plan.changes[0].values == {LEADER_RATE: "100"}
    assert plan.unsettled == {"r"}


@pytest.mark.spec("OPR-35")
def test_once_it_stands_nothing_is_changed_and_moves_may_start() -> None:
    plan = plan_throttles([Share("r", {RATE: "100"}, (record(RATE, "7", "100"),))], seen(rate="100"))
    assert plan.changes == ()
    assert plan.unsettled == frozenset()


@pytest.mark.spec("OPR-35")
@pytest.mark.parametrize("prior", [None, "7"])
def test_when_nobody_needs_it_any_more_it_is_put_back(prior: str | None) -> None:
    plan = plan_throttles([Share("r", {}, (record(RATE, prior, "100"),))], seen(rate="100"))
    assert plan.changes[0].values == {LEADER_RATE: prior}
    assert plan.records["r"] == (record(RATE, prior, "100"),)
    after = plan_throttles([Share("r", {}, plan.records["r"])], seen(rate=prior))
    assert after.changes == ()
    assert after.records["r"] == ()


@pytest.mark.spec("OPR-35")
def test_what_somebody_else_set_meanwhile_is_left_alone() -> None:
    ended = plan_throttles([Share("r", {}, (record(RATE, "7", "100"),))], seen(rate="55"))
    assert ended.changes == ()
    assert ended.records["r"] == ()
    running = plan_throttles([Share("r", {RATE: "100"}, (record(RATE, "7", "100"),))], seen(rate="55"))
    assert running.changes == ()
    assert running.unsettled == frozenset()


@pytest.mark.spec("OPR-31")
def test_another_rate_while_it_runs_is_applied_and_both_are_known_as_ours() -> None:
    plan = plan_throttles([Share("r", {RATE: "300"}, (record(RATE, None, "100"),))], seen(rate="100"))
    assert plan.changes[0].values == {LEADER_RATE: "300"}
    assert plan.records["r"] == (record(RATE, None, "100", "300"),)


@pytest.mark.spec("OPR-31")
def test_no_throttle_any_more_while_it_runs_puts_back_what_was() -> None:
    assert wanted_throttles([move(((0, "/a"),), ((1, "/a"),))], Throttle()) == {}
    assert wanted_throttles([move(((0, "/a"),), ((1, "/a"),))], None) == {}


@pytest.mark.spec("OPR-35")
def test_plans_that_overlap_share_the_lowest_rate_and_the_first_prior() -> None:
    first = Share("first", {RATE: "100"}, (record(RATE, "7", "100"),))
    plan = plan_throttles([first, Share("second", {RATE: "60"}, ())], seen(rate="100"))
    assert plan.changes[0].values == {LEADER_RATE: "60"}
    assert {row.prior for rows in plan.records.values() for row in rows} == {"7"}


@pytest.mark.spec("OPR-35")
def test_the_last_one_out_puts_back() -> None:
    records = (record(RATE, "7", "100", "60"),)
    first_ended = plan_throttles([Share("first", {}, records), Share("second", {RATE: "60"}, records)], seen(rate="60"))
    assert first_ended.changes == ()
    assert first_ended.records["first"] == ()
    both_ended = plan_throttles([Share("second", {}, first_ended.records["second"])], seen(rate="60"))
    assert both_ended.changes[0].values == {LEADER_RATE: "7"}


@pytest.mark.spec("OPR-35")
def test_lists_of_replicas_are_united_with_what_was_there() -> None:
    shares = [Share("a", {LIST: "0:1,0:2"}, ()), Share("b", {LIST: "1:0"}, ())]
    assert plan_throttles(shares, seen(replicas="0:9")).changes[0].values == {LEADER_REPLICAS: "0:1,0:2,0:9,1:0"}
    wildcard = plan_throttles([Share("a", {LIST: "0:1"}, ())], seen(replicas="*"))
    assert wildcard.changes == ()


def test_long_lists_are_recorded_by_their_hash() -> None:
    value = ",".join(f"{index}:1" for index in range(99))
    plan = plan_throttles([Share("a", {LIST: value}, ())], seen())
    assert plan.records["a"][0].applied == (fingerprint(value),)
    assert fingerprint(value).startswith("sha256:")
    back = plan_throttles([Share("a", {}, plan.records["a"])], seen(replicas=value))
    assert back.changes[0].values == {LEADER_REPLICAS: None}


@pytest.mark.spec("OPR-08")
@pytest.mark.spec("OPR-35")
def test_a_broker_that_cannot_be_read_keeps_its_record_until_it_can() -> None:
    records = (record(RATE, "7", "100"),)
    unread = seen()
    from dataclasses import replace

    unread = replace(unread, broker_configs={1: {}, 2: {}})
    assert plan_throttles([Share("r", {}, records)], unread).records["r"] == records
    waiting = plan_throttles([Share("r", {RATE: "100"}, records)], unread)
    assert waiting.unsettled == {"r"}
    assert waiting.records["r"] == records


def test_a_broker_that_was_unregistered_for_good_holds_nobody() -> None:
    records = (record(RATE, None, "100"),)
    assert plan_throttles([Share("r", {}, records)], seen(brokers=(1, 2))).records["r"] == ()


@pytest.mark.spec("OPR-35", "OPR-36")
def test_a_broker_that_is_away_needs_no_throttle_and_holds_no_move() -> None:
    """A drain of a dead broker is made from the others; its own settings can be neither read nor changed."""
    held = (record(RATE, "7", "100"),)
    for records in ((), held):
        away = view({"orders": topic_view((0, 1))}, offline=[0], broker_configs={1: {}, 2: {}})
        plan = plan_throttles([Share("r", {RATE: "100"}, records)], away)
        assert (plan.unsettled, plan.changes) == (frozenset(), ())
        assert plan.records["r"] == records
    back = plan_throttles([Share("r", {RATE: "100"}, ())], seen())
    assert (back.unsettled, back.changes[0].values) == ({"r"}, {LEADER_RATE: "100"})
