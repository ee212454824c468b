"""Changes topics and Reassignments at random while the operator is killed and its API fails; in the end all must be as
wanted.

The test runs a short ordeal, `./ballast soak operator` a long one. The user's changes go straight to the API; only the
operator is behind the faults. Everything follows from the seed, except for the timing of the processes.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields

from e2e.sockets import forget_sockets
from tests.operator.faults import Chances, FaultyApi
from tests.operator.world import World

from ballast_operator.model.kafka import KafkaView
from ballast_operator.observe import observe_broker_configs, observe_topic_configs

BROKERS = (0, 1, 2)
MOVED_PARTITIONS = 2
RECORD_BYTES = 100_000
RECORDS_PER_PARTITION = 4
ENDED = ("Succeeded",)


@dataclass(frozen=True)
class Settings:
    """How many topics and Reassignments there are, and how often the operator is killed or its API goes down."""

    seed: int
    topics: int
    reassignments: int
    kills: int
    outages: int
    calm_seconds: float = 120.0
    prefix: str = "ordeal"


@dataclass
class Wanted:
    """What a topic should be in the end; `id` is the topic id that it was first seen with."""

    partitions: int
    config: dict[str, str]
    deletes: bool
    deleted: bool = False
    id: str | None = None


@dataclass
class Verdict:
    findings: list[str] = field(default_factory=list)
    kills: int = 0
    seconds: float = 0.0
    settled_seconds: float = 0.0
    faults: dict[str, int] = field(default_factory=dict)


class Ordeal:
    """One run in a world; its operator is replaced by one behind faults, and restored afterwards."""

    def __init__(self, world: World, settings: Settings, say: Callable[[str], None] = lambda _: None) -> None:
        self._world = world
        self._settings = settings
        self._say = say
        self._chance = random.Random(settings.seed)
        self._wanted: dict[str, Wanted] = {}
        self._moves: dict[str, tuple[int, ...]] = {}
        self._hashes: dict[str, set[str]] = defaultdict(set)
        self._verdict = Verdict()

    def run(self) -> Verdict:
        began = time.monotonic()
        world = self._world
        faulty = FaultyApi(world.kubeconfig, self._settings.seed)
        world.run(faulty.start())
        try:
            self._prepare()
            world.kill_operator()
            world.restart_operator(faulty.kubeconfig)
            faulty.chances = Chances()
            self._torment(faulty)
            self._storm(faulty)
            faulty.chances = None
            calm = time.monotonic()
            self._settle()
            self._verdict.settled_seconds = time.monotonic() - calm
            self._judge()
        finally:
            world.kill_operator()
            world.restart_operator()
            world.run(faulty.stop())
            forget_sockets()
        self._verdict.faults = dict(faulty.did)
        self._verdict.seconds = time.monotonic() - began
        return self._verdict

    # The topics that are moved exist before, with records in them.

    def _moving(self, index: int) -> str:
        return f"{self._settings.prefix}-moving-{index:02d}"

    def _prepare(self) -> None:
        names = [self._moving(index) for index in range(self._settings.reassignments)]
        for name in names:
            self._world.topic(name, replicaAssignment=[[0, 1]] * MOVED_PARTITIONS)
        self._world.until_all_ready(names)
        for name in names:
            self._world.pause("KafkaTopic", name)
        self._world.fill(names, MOVED_PARTITIONS, RECORDS_PER_PARTITION, RECORD_BYTES)

    # What happens.

    def _torment(self, faulty: FaultyApi) -> None:
        settings = self._settings
        deeds = ["topic"] * settings.topics + ["change"] * settings.topics + ["move"] * settings.reassignments
        self._chance.shuffle(deeds)
        deeds = [deed for deed in deeds if deed == "topic"][:3] + deeds
        kills = set(self._chance.sample(range(len(deeds)), min(settings.kills, len(deeds))))
        outages = set(self._chance.sample(range(len(deeds)), min(settings.outages, len(deeds))))
        for step, deed in enumerate(deeds):
            if step in outages:
                self._world.run(faulty.go_down(self._chance.uniform(0.5, 4.0)))
            if step in kills:
                self._kill(faulty)
            self._do(deed)
            self._look()
        while self._verdict.kills < settings.kills:
            self._kill(faulty)
            self._look()

    def _storm(self, faulty: FaultyApi) -> None:
        """The last operator, which is not killed, must survive every kind of fault."""
        wanted = {one.name for one in fields(Chances)} - {"expired"}
        end = time.monotonic() + self._settings.calm_seconds
        while not wanted <= faulty.did.keys() and time.monotonic() < end:
            self._change(("config",))
            self._look()

    def _kill(self, faulty: FaultyApi) -> None:
        """Kill it at any moment of its life, sometimes before it holds the Lease."""
        if self._chance.random() < 0.8:
            self._world.until("it leads", lambda: self._world.leader() != "", 60)
        self._pause(self._chance.choice([0.1, 0.5, 1.0, 2.0]) * self._chance.random())
        self._world.kill_operator()
        self._world.restart_operator(faulty.kubeconfig)
        self._verdict.kills += 1
        if self._verdict.kills % 10 == 0:
            self._say(f"{self._verdict.kills} kills, {len(self._wanted)} topics, {len(self._moves)} reassignments")

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self._world.until("a moment passes", lambda: time.monotonic() > end)

    def _do(self, deed: str) -> None:
        if deed == "topic" and len(self._wanted) < self._settings.topics:
            self._create()
        elif deed == "move" and len(self._moves) < self._settings.reassignments:
            self._move()
        else:
            self._change()

    def _create(self) -> None:
        index = len(self._wanted)
        name = f"{self._settings.prefix}-{index:03d}"
        config = {"retention.ms": str(1_000_000 + index)} if index % 3 else {}
        self._wanted[name] = Wanted(1 + index % 3, config, deletes=index % 2 == 0)
        self._apply(name)

    def _apply(self, name: str) -> None:
        wanted = self._wanted[name]
        policy = "Delete" if wanted.deletes else "Retain"
        spec = {"partitions": wanted.partitions, "replicas": 2, "config": wanted.config, "deletionPolicy": policy}
        self._world.topic(name, **spec)

    def _change(self, kinds: Sequence[str] = ("config", "config", "expand", "delete")) -> None:
        alive = [name for name, wanted in self._wanted.items() if not wanted.deleted]
        if not alive:
            return
        name = self._chance.choice(alive)
        wanted = self._wanted[name]
        match self._chance.choice(kinds):
            case "config":
                wanted.config = {"retention.ms": str(self._chance.randrange(10**6, 10**7))}
            case "expand":
                wanted.partitions += 1
            case _:
                wanted.deleted = True
                self._world.delete("KafkaTopic", name)
                return
        self._apply(name)

    def _move(self) -> None:
        index = len(self._moves)
        name = self._moving(index)
        target = (2, 1) if index % 2 else (1, 2)
        self._moves[name] = target
        rows = [{"topic": name, "partition": part, "replicas": list(target)} for part in range(MOVED_PARTITIONS)]
        self._world.reassign(name, partitions=rows, throttle={"interBroker": "2Mi", "intraBroker": "2Mi"})

    def _look(self) -> None:
        """Record what must never change: the hashes of plans and the ids of topics."""
        for body in self._world.list("Reassignment"):
            told = (body.get("status") or {}).get("plan") or {}
            if told.get("hash"):
                self._hashes[body["metadata"]["name"]].add(told["hash"])
        for body in self._world.list("KafkaTopic"):
            name, status = body["metadata"]["name"], body.get("status") or {}
            wanted = self._wanted.get(name)
            if wanted is not None and status.get("topicId"):
                if wanted.id not in (None, status["topicId"]):
                    self._finding(f"topic {name} had the id {wanted.id} and then {status['topicId']}")
                wanted.id = status["topicId"]

    # How it ends.

    def _finding(self, text: str) -> None:
        if text not in self._verdict.findings:
            self._verdict.findings.append(text)

    def _settle(self) -> None:
        living = [name for name, wanted in self._wanted.items() if not wanted.deleted]
        gone = self._wanted.keys() - set(living)
        seconds = self._settings.calm_seconds
        try:
            self._world.until_all_ready(living, seconds)
            names = lambda: {body["metadata"]["name"] for body in self._world.list("KafkaTopic")}  # noqa: E731
            self._world.until("deleted objects are gone", lambda: not gone & names(), seconds)
            for name in self._moves:
                self._world.until_phase(name, *ENDED, seconds=seconds)
        except AssertionError as error:
            self._finding(str(error))

    def _judge(self) -> None:
        self._look()
        seen = self._world.view()
        self._judge_topics(seen)
        for name, target in self._moves.items():
            found = {part.replicas for part in seen.topics[name].partitions.values()}
            if found != {target}:
                self._finding(f"the partitions of {name} are on {found}, not on {target}")
            if len(self._hashes[name]) > 1:
                self._finding(f"Reassignment {name} had several plans: {self._hashes[name]}")
        if seen.ongoing:
            self._finding(f"something still moves: {sorted(map(str, seen.ongoing))}")
        throttles = self._world.run(observe_broker_configs(self._world.kafka, BROKERS))
        if throttles != {broker: {} for broker in BROKERS}:
            self._finding(f"throttles are left on brokers: {throttles}")
        moved = self._world.run(observe_topic_configs(self._world.kafka, list(self._moves)))
        if any(moved.values()):
            self._finding(f"throttles are left on topics: {moved}")

    def _judge_topics(self, seen: KafkaView) -> None:
        stays = [name for name, wanted in self._wanted.items() if not wanted.deleted]
        configs = self._world.run(observe_topic_configs(self._world.kafka, stays))
        for name, wanted in self._wanted.items():
            topic = seen.topics.get(name)
            if wanted.deleted and wanted.deletes:
                if topic is not None:
                    self._finding(f"topic {name} should have been deleted")
            elif topic is None:
                # A topic that was deleted before the operator ever saw it was never created.
                if not wanted.deleted or wanted.id is not None:
                    self._finding(f"topic {name} is gone")
            elif wanted.id is not None and topic.id != wanted.id:
                self._finding(f"topic {name} was made again: {topic.id} instead of {wanted.id}")
            elif not wanted.deleted:
                self._judge_topic(name, wanted, len(topic.partitions), configs.get(name))

    def _judge_topic(self, name: str, wanted: Wanted, partitions: int, config: dict[str, str] | None) -> None:
        if partitions != wanted.partitions:
            self._finding(f"topic {name} has {partitions} partitions, not {wanted.partitions}")
        if config != wanted.config:
            self._finding(f"topic {name} has the configuration {config}, not {wanted.config}")
