"""The operator killed at any time, and two of them at once: the end is right and nothing was done twice."""

from __future__ import annotations

import random
import time
from datetime import datetime
from typing import Any

import pytest
from tests.operator.world import LEASE, World

from ballast_operator.apply.kafka import alter_configs
from ballast_operator.apply.kubernetes import path_of
from ballast_operator.model.actions import AlterConfig
from ballast_operator.model.kafka import TOPIC, TopicPartition
from ballast_operator.observe import observe_broker_configs, observe_topic_configs

pytestmark = pytest.mark.timeout(300)
KILLS = 4
TOPICS = 60


@pytest.fixture(scope="module")
def world(ballast_world: World) -> World:
    return ballast_world


@pytest.mark.spec("OPR-04")
@pytest.mark.spec("OPR-35")
def test_killed_again_and_again_while_topics_and_reassignments_are_worked_on(world: World) -> None:
    chance = random.Random(7)
    world.movable_topic("moving", [[0, 1]] * 4)
    names = [f"topic-{index:03d}" for index in range(TOPICS)]
    for index, name in enumerate(names):
        if index % (TOPICS // KILLS) == 0:
            world.kill_operator()
            world.restart_operator()
        if index % 20 == 5:
            rows = [{"topic": "moving", "partition": index // 20, "replicas": [2, 1]}]
            world.reassign(f"move-{index}", partitions=rows, throttle={"interBroker": "1Mi", "intraBroker": "1Mi"})
        policy = "Delete" if index % 2 else "Retain"
        world.topic(name, partitions=2, replicas=2, config={"retention.ms": 1000000 + index}, deletionPolicy=policy)
        end = time.monotonic() + chance.random() / 10
        world.until("a moment passes", lambda: time.monotonic() > end)  # noqa: B023
    world.until_all_ready(names)
    for index in range(5, TOPICS, 20):
        world.until_phase(f"move-{index}", "Succeeded")
    seen = world.view()
    assert all(len(seen.topics[name].partitions) == 2 for name in names)
    assert {part.replicas for index, part in seen.topics["moving"].partitions.items() if index < 3} == {(2, 1)}
    assert world.run(observe_broker_configs(world.kafka, [0, 1, 2])) == {0: {}, 1: {}, 2: {}}
    configs = world.run(observe_topic_configs(world.kafka, [*names, "moving"]))
    assert configs.pop("moving") == {}
    assert configs == {name: {"retention.ms": str(1000000 + index)} for index, name in enumerate(names)}
    assert [c for c in world.list("KafkaTopic") if c["status"]["conditions"][0]["reason"] == "TopicExists"] == []


@pytest.mark.spec("OPR-20")
def test_after_all_that_deletion_still_follows_the_policy(world: World) -> None:
    names = [
        body["metadata"]["name"] for body in world.list("KafkaTopic") if body["metadata"]["name"].startswith("topic-")
    ]
    world.kill_operator()
    for name in names:
        world.delete("KafkaTopic", name)
    world.restart_operator()
    world.until("they are gone", lambda: not set(names) & {b["metadata"]["name"] for b in world.list("KafkaTopic")}, 60)
    left = world.view().topics
    assert [name for name in names if name in left] == [name for index, name in enumerate(names) if index % 2 == 0]


@pytest.mark.spec("OPR-35")
def test_killed_in_the_middle_of_a_move_it_goes_on_and_puts_the_throttle_back(world: World) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=world.bootstrap.split(","), acks="all", batch_size=1 << 20)
    for index in range(80):
        producer.send("moving", bytes(100_000), partition=2 + index % 2)
    producer.flush(60)
    producer.close()
    lists = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
    # Somebody else's, one of them the very entry that the move needs.
    prior = AlterConfig(TOPIC, "moving", {lists[0]: "9:9,3:1"})
    assert all(outcome.ok for outcome in world.run(alter_configs(world.kafka, [prior])).values())
    rows = [{"topic": "moving", "partition": 3, "replicas": [2, 1]}]
    world.reassign("middle", partitions=rows, throttle={"interBroker": "1Mi"})
    lost = [{"topic": "moving", "partition": 2, "replicas": [0, 1]}]
    world.reassign("robbed", partitions=lost, throttle={"interBroker": "1Mi"})
    world.until_phase("robbed", "Running", "Verifying")
    world.until("it moves", lambda: TopicPartition("moving", 3) in world.view().ongoing)
    world.kill_operator()
    assert world.run(observe_broker_configs(world.kafka, [2]))[2] != {}

    def entries(key: str, partition: int) -> set[str]:
        found = world.run(observe_topic_configs(world.kafka, ["moving"]))["moving"].get(key, "")
        return {entry for entry in found.split(",") if entry.startswith(f"{partition}:")}

    assert (entries(lists[0], 3), entries(lists[1], 3)) == ({"3:0", "3:1"}, {"3:2"})
    for name in (world.get("Reassignment", "robbed") or {})["status"]["plan"]["configMaps"]:
        world.api("delete", path_of("v1", "configmaps", "default", name))
    world.restart_operator()
    world.until_reason("Reassignment", "robbed", "PlanLost")
    world.until_phase("middle", "Succeeded")

    def unthrottled() -> bool:
        return world.run(observe_broker_configs(world.kafka, [0, 1, 2])) == {0: {}, 1: {}, 2: {}}

    world.until("no throttle is left", unthrottled)
    assert (entries(lists[0], 3), entries(lists[1], 3), entries(lists[0], 9)) == ({"3:1"}, set(), {"9:9"})
    clear = AlterConfig(TOPIC, "moving", dict.fromkeys(lists))
    assert all(outcome.ok for outcome in world.run(alter_configs(world.kafka, [clear])).values())


@pytest.mark.spec("OPR-04")
def test_of_two_operators_one_acts_and_the_other_takes_over_in_time(world: World) -> None:
    other = world.start_another_operator()
    log = world.data / "other.log"
    world.until("the other one waits", lambda: log.exists() and "this operator waits" in log.read_text(), 60)
    world.topic("with-two", partitions=1)
    world.until_ready("KafkaTopic", "with-two")
    world.kill_operator(keep_lease=True)
    before = world.api("get", LEASE)["spec"]  # as renewed for the last time

    def taken() -> dict[str, Any] | None:
        found: dict[str, Any] = world.api("get", LEASE)["spec"]
        return found if found["holderIdentity"] != before["holderIdentity"] else None

    after = world.until("the other one leads", taken, 60)
    world.topic("after", partitions=1)
    world.until_ready("KafkaTopic", "after")
    assert "this operator leads" in log.read_text()
    assert other.poll() is None
    gap = datetime.fromisoformat(after["acquireTime"]) - datetime.fromisoformat(before["renewTime"])
    assert gap.total_seconds() < 15
    other.kill()
    other.wait()
    world.api("delete", LEASE)
    world.restart_operator()


@pytest.mark.spec("OPR-04")
def test_who_is_told_to_stop_gives_the_lease_back_at_once(world: World) -> None:
    """Kopf gives 5 s to tasks that do not end with it, and all the while the Lease was held."""
    world.topic("held", partitions=1)
    world.until_ready("KafkaTopic", "held")
    began = time.monotonic()
    world.end_operator()
    assert time.monotonic() - began < 4.5
    assert world.api("get", LEASE)["spec"]["holderIdentity"] == ""
    world.restart_operator()
    world.topic("after", partitions=1)
    world.until_ready("KafkaTopic", "after")
