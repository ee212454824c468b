"""Inflicts faults of every kind in random order for a given time, under load and while replicas move; then judges.

The seed repeats the kinds, their order and their choices; what exactly a fault hits depends on the machine.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Iterator

from e2e.kubernetes.clocks import brokers_with_clocks
from e2e.kubernetes.faults import HEAL_SECONDS, KINDS, Fault, fragile_volumes, volume_folders
from e2e.kubernetes.load import Account, Load
from e2e.kubernetes.story import produce, throttles_left, until_in_sync
from e2e.kubernetes.world import CLUSTER, World, cluster, reassignment, topic

LOADED, CARRIED = "mixed-faults", "carried"
CARRIED_RECORDS, CARRIED_BYTES = 800, 10_000
THROTTLE = {"interBroker": "1Mi", "intraBroker": "1Mi"}
# Folders of replicas that are on their way in or out.
PASSING = re.compile(r"-(future|delete|stray)$")
REPLICA = re.compile(r"^(.+)-(\d+)$")
TIDY_SECONDS = 150.0  # deleted folders are removed a minute later


class MixedFaults:
    def __init__(self, world: World, minutes: float, seed: int) -> None:
        self._world = world
        self._seconds = minutes * 60
        self._seed = seed
        self.faults = 0
        self.account = Account()

    def run(self) -> list[str]:
        """Findings; none means that all is well."""
        with brokers_with_clocks(self._world):
            return self._run(self._world)

    def _run(self, world: World) -> list[str]:
        world.say(f"faults for {self._seconds / 60:g} minutes, seed {self._seed}")
        world.apply(cluster(world))
        world.until_ready("kafkacluster", CLUSTER, HEAL_SECONDS)
        fragile_volumes(world)
        config = {"min.insync.replicas": "2"}
        world.apply(topic(LOADED, partitions=9, replicas=3, config=config), topic(CARRIED, partitions=1, replicas=2))
        for name in (LOADED, CARRIED):
            world.until_ready("kafkatopic", name)
        produce(world, CARRIED, [os.urandom(CARRIED_BYTES) for _ in range(CARRIED_RECORDS)])
        until_in_sync(world)
        load = Load(world.bootstrap, LOADED)
        load.start()
        try:
            self._faults(load)
        except BaseException:
            load.abandon()
            raise
        self.account = load.finish()
        findings = list(self.account.problems)
        if self.account.acknowledged != self.account.sent:
            findings.append(f"{self.account.sent - self.account.acknowledged} records were not acknowledged")
        world.apply(cluster(world))
        world.until_ready("kafkacluster", CLUSTER, HEAL_SECONDS)
        return findings + self._leftovers()

    def _kinds(self) -> Iterator[Fault]:
        """Every kind once before any is repeated, in a new order each time."""
        order = random.Random(self._seed)
        while True:
            yield from order.sample(KINDS, len(KINDS))

    def _faults(self, load: Load) -> None:
        end = time.monotonic() + self._seconds
        for inflict in self._kinds():
            if time.monotonic() > end:
                return
            self.faults += 1
            # One generator per fault: what one draws must not change the faults that follow.
            rng = random.Random(f"{self._seed}/{self.faults}")
            moving = self._move(rng) if rng.random() < 0.5 else ""
            what = inflict(self._world, rng)
            self._heal()
            if moving:
                self._world.until_phase(moving, "Succeeded", seconds=HEAL_SECONDS)
                self._world.kubectl("delete", "reassignment", moving)
                what += ", while a replica moved"
            load.await_progress()
            told = f"silent for {load.take_silence_s():.1f} s, {load.acknowledged:,} acknowledged"
            self._world.say(f"fault {self.faults}: {what}; {told}")

    def _heal(self) -> None:
        self._world.until_ready("kafkacluster", CLUSTER, HEAL_SECONDS)
        self._world.kubectl("rollout", "status", "deployment/ballast-operator", "--timeout=240s", seconds=260)
        until_in_sync(self._world)

    def _move(self, rng: random.Random) -> str:
        """Move one replica to the broker that has none; returns once it is on its way."""
        name = f"carry-{self.faults}"
        kept, gone = rng.sample(self._world.view().topics[CARRIED].partitions[0].replicas, 2)
        target = ({0, 1, 2} - {kept, gone}).pop()
        row = {"topic": CARRIED, "partition": 0, "replicas": [kept, target]}
        self._world.apply(reassignment(name, partitions=[row], throttle=THROTTLE))
        self._world.until_phase(name, "Running", "Succeeded")
        return name

    # ---- what must not be left

    def _leftovers(self) -> list[str]:
        """Whatever is left after a while, in which deleted things disappear, is a finding."""
        deadline = time.monotonic() + TIDY_SECONDS
        while True:
            findings = self._strange_pods() + throttles_left(self._world) + self._strange_folders()
            if not findings or time.monotonic() > deadline:
                return findings
            time.sleep(1)

    def _strange_pods(self) -> list[str]:
        pods = [pod["metadata"] for pod in self._world.all("pods")]
        operators = [one for one in pods if one.get("labels", {}).get("app.kubernetes.io/name") == "ballast-operator"]
        named = {one["name"] for one in pods if one not in operators}
        found = [f"pods {sorted(named)} are there"] if named != {f"{CLUSTER}-{n}" for n in range(3)} else []
        return found + ([] if len(operators) == 2 else [f"{len(operators)} pods of the operator are there"])

    def _strange_folders(self) -> list[str]:
        """Each broker has exactly the folders of its replicas, each once."""
        view = self._world.view()
        found: list[str] = []
        for broker in sorted(view.brokers):
            due = sorted(f"{log.topic}-{log.partition}" for log in view.logs if log.broker == broker)
            volumes = volume_folders(self._world, f"{CLUSTER}-{broker}")
            there = sorted(path.name for volume in volumes for path in volume.glob("data/*-*") if path.is_dir())
            names = [name for name in there if REPLICA.match(name) and name != "__cluster_metadata-0"]
            found += [f"broker {broker} has a folder {name}" for name in there if PASSING.search(name)]
            if names != due:
                found.append(f"broker {broker} has the folders {sorted(set(names) ^ set(due))} too many or too few")
        return found
