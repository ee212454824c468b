"""Throttles are set for the moves, shared between plans, and always put back as they were."""

import pytest
from tests.operator.making import move, topic_view, view

from ballast_operator.handlers import put_back as put_back_module
from ballast_operator.handlers.put_back import PutBackMemory
from ballast_operator.model.actions import Subtracted
from ballast_operator.model.kafka import BROKER, TOPIC, ConfigId, KafkaView
from ballast_operator.model.reassignment import Throttle, ThrottledLists, ThrottleRecord
from ballast_operator.plan.throttled_lists import FOLLOWER_REPLICAS, LEADER_REPLICAS, Part
from ballast_operator.plan.throttles import (
    FOLLOWER_RATE,
    INTRA_RATE,
    LEADER_RATE,
    Share,
    ThrottlePlan,
    fingerprint,
    plan_throttles,
    wanted_entries,
    wanted_rates,
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
    moves, throttle = [move(((0, "/a"), (1, "/a")), ((0, "/a"), (2, "/a")))], Throttle(inter_broker="1Ki")
    rates = {ConfigId(BROKER, str(b), key): "1024" for b in (0, 1, 2) for key in (LEADER_RATE, FOLLOWER_RATE)}
    assert wanted_rates(moves, throttle) == rates
    assert wanted_entries(moves, throttle) == {
        ConfigId(TOPIC, "orders", LEADER_REPLICAS): ["0:0", "0:1"],
        ConfigId(TOPIC, "orders", FOLLOWER_REPLICAS): ["0:2"],
    }


def test_what_a_move_between_directories_needs() -> None:
    moves, throttle = [move(((0, "/a"),), ((0, "/b"),))], Throttle(intra_broker="2M", inter_broker="1M")
    assert wanted_rates(moves, throttle) == {ConfigId(BROKER, "0", INTRA_RATE): "2000000"}
    assert wanted_entries(moves, throttle) == {}


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
    assert plan.restoring == {RATE: {"100"}}
    after = plan_throttles([Share("r", {}, plan.records["r"])], seen(rate=prior), plan.restoring)
    assert after.changes == ()
    assert after.records["r"] == ()


@pytest.mark.spec("OPR-35")
@pytest.mark.parametrize("prior", [None, "7"])
def test_a_broker_that_has_not_heard_yet_of_its_throttle_does_not_hide_it(prior: str | None) -> None:
    """It says what was before, while the throttle is in the cluster's metadata already and would stay for ever."""
    plan = plan_throttles([Share("r", {}, (record(RATE, prior, "100"),))], seen(rate=prior))
    assert plan.changes[0].values == {LEADER_RATE: prior}
    assert plan.records["r"] == (record(RATE, prior, "100"),)
    needed_again = plan_throttles([Share("r", {RATE: "100"}, plan.records["r"])], seen(rate=prior), plan.restoring)
    assert (needed_again.restoring, needed_again.put_back) == ({}, {})
    assert needed_again.changes[0].values == {LEADER_RATE: "100"}


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
    for throttle in (Throttle(), None):
        assert wanted_rates([move(((0, "/a"),), ((1, "/a"),))], throttle) == {}
        assert wanted_entries([move(((0, "/a"),), ((1, "/a"),))], throttle) == {}


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


@pytest.mark.spec("OPR-31", "OPR-35")
def test_a_rate_that_is_changed_for_ever_does_not_make_the_record_grow() -> None:
    """And what stands there is known as ours, however many changes Kafka refused since."""
    records: tuple[ThrottleRecord, ...] = (record(RATE, "7", "100"),)
    for rate in range(200, 300):
        records = plan_throttles([Share("r", {RATE: str(rate)}, records)], seen(rate="100")).records["r"]
    assert len(records[0].applied) < 10
    assert plan_throttles([Share("r", {}, records)], seen(rate="100")).changes[0].values == {LEADER_RATE: "7"}
    assert plan_throttles([Share("r", {}, records)], seen(rate="299")).changes[0].values == {LEADER_RATE: "7"}


@pytest.mark.spec("OPR-35")
def test_without_its_plan_the_lists_that_an_older_operator_recorded_are_put_back() -> None:
    value = ",".join(f"{index}:1" for index in range(99))
    records = (record(LIST, None, fingerprint(value)),)
    assert fingerprint(value).startswith("sha256:")
    back = plan_throttles([Share("a", {}, records)], seen(replicas=value))
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
    assert (back.unsettled, back.changes[0].values) == (frozenset({"r"}), {LEADER_RATE: "100"})


@pytest.mark.spec("OPR-35")
def test_a_broker_that_has_not_heard_that_a_rate_was_put_back_does_not_make_it_the_one_before() -> None:
    """It was asked between the two, and what the first had set would be put back as the prior value by the second."""
    put_back = {RATE: frozenset({"100"})}
    lagging = plan_throttles([Share("second", {RATE: "300"}, ())], seen(rate="100"), put_back)
    assert (lagging.records["second"], lagging.changes, lagging.unreadable) == ((), (), frozenset({"second"}))
    assert lagging.put_back == put_back
    heard = plan_throttles([Share("second", {RATE: "300"}, ())], seen(rate="7"), lagging.put_back)
    assert heard.records["second"] == (record(RATE, "7", "300"),)
    assert heard.put_back == {}


@pytest.mark.spec("OPR-04", "OPR-35")
def test_an_operator_that_has_just_begun_does_not_take_a_rate_of_ours_for_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The one before it was killed when it had put the rate back and told so; a broker that lags still has ours, and it
    stayed with it for good."""
    now = [1000.0]
    monkeypatch.setattr(put_back_module, "monotonic", lambda: now[0])
    memory, asked = PutBackMemory(), [None, Throttle(inter_broker="300", intra_broker="1k")]

    def planned(rate: str) -> ThrottlePlan:
        memory.look()
        return plan_throttles([Share("r", {RATE: "300"}, ())], seen(rate=rate), memory.known, memory.suspected(asked))

    for rate in ("300", "1000"):
        waits = planned(rate)
        assert (waits.records["r"], waits.changes, waits.unreadable) == ((), (), frozenset({"r"}))
    assert planned("7").records["r"] == (record(RATE, "7", "300"),), "nobody here asks for that one: it is another's"
    for _ in range(7):
        memory.look()
        now[0] += 10.0
    assert planned("1000").records["r"] == (record(RATE, "1000", "300"),), "no broker lags for so long"
    now[0] += 100.0
    assert planned("300").unreadable == {"r"}, "after such a pause another may have led meanwhile"


@pytest.mark.spec("OPR-35")
def test_a_broker_that_has_not_heard_of_entries_does_not_hide_them() -> None:
    held = ThrottledLists(1)
    own = {LIST: ["0:0", "0:1"]}
    ended = Share("r", {}, (), Part("r", {}, own, held))
    for replicas, change in ((None, None), ("9:9", Subtracted(("0:0", "0:1")))):
        plan = plan_throttles([ended], seen(replicas=replicas))
        assert (plan.lists["r"], plan.changes[0].values) == (held, {LEADER_REPLICAS: change})
        acknowledged = plan_throttles([ended], seen(replicas=replicas), plan.restoring)
        assert (acknowledged.lists["r"], acknowledged.changes) == (None, ())


@pytest.mark.spec("OPR-35")
def test_entries_that_were_taken_out_a_moment_ago_did_not_stand_there_before() -> None:
    part = Part("second", {LIST: ["0:0"]}, {LIST: ["0:0"]})
    begun = plan_throttles([Share("second", {}, (), part)], seen(replicas="0:0"), {LIST: frozenset({"0:0"})})
    assert begun.lists["second"] == ThrottledLists(1)
    assert begun.put_back == {}
