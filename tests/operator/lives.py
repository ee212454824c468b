"""Runs an operator that is killed after every few changes, in turn with a world that advances step by step.

There are no processes, sockets or real clocks: a life of the operator is a `ClusterCycle` with its collaborators, and
it ends in the middle of a request, whose answer it never gets. The next life knows only what is in the objects, as
after a restart. What schedules work (queues, timers, watches) is left out: each pass looks at everything.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from uuid import UUID

from tests.operator.still_kafka import StillConnection, StillKafka
from tests.operator.still_kubernetes import Object, StillKubernetes

from ballast_local import meta
from ballast_operator import clock, connections
from ballast_operator.apply.kubernetes import KubernetesApi, path_of
from ballast_operator.apply.writer import Writer
from ballast_operator.cache import Cache
from ballast_operator.clock import ServerClock
from ballast_operator.cycle import ClusterCycle, Shared
from ballast_operator.events import Events
from ballast_operator.handlers import kube_objects
from ballast_operator.kubeconfig import ApiAccess
from ballast_operator.metrics import Metrics
from ballast_operator.model import cluster as cluster_model
from ballast_operator.model import reassignment as reassignment_model
from ballast_operator.model import topic as topic_model
from ballast_operator.model.meta import API_VERSION, GROUP, Key
from ballast_operator.resources.names import DRAINED
from ballast_operator.worker import Work

KEY = Key("default", "demo")
BEGAN = 1_767_323_045.0
LOOK_SECONDS = 5.0
QUIET_LOOKS = 4
MOST_LOOKS = 400
MOST_LIVES = 80
TROUBLED_REQUESTS = 400
KINDS = {
    "KafkaCluster": cluster_model.PLURAL,
    "KafkaTopic": topic_model.PLURAL,
    "Reassignment": reassignment_model.PLURAL,
}
KAFKA_COUNTS_FROM = 5
CHANGES = ("Alter", "Create", "Delete", "Incremental", "Update", "Add", "Remove", "Unregister")


class Killed(BaseException):
    """The operator has been killed."""


class Trouble:
    """Faults of requests to Kubernetes: no answer, whether or not the request took effect; temporary refusals; for some
    time no answer at all about one object or kind."""

    def __init__(self, seed: int, requests: int = TROUBLED_REQUESTS) -> None:
        self.random = random.Random(seed)
        self._left = requests
        self._away: dict[str, int] = {}
        self.befell = 0

    def of(self, path: str) -> str:
        """The fault of one attempt of a request; "" for none."""
        self._left -= 1
        if self._left < 0:
            return ""
        befalls = self._of(path)
        self.befell += bool(befalls)
        return befalls

    def _of(self, path: str) -> str:
        if path not in self._away and self.random.random() < 0.03:
            self._away[path] = self.random.randrange(1, 16)
        if self._away.get(path, 0) > 0:
            self._away[path] -= 1
            return self.random.choice(("cut", "busy"))
        return "lost" if self.random.random() < 0.05 else ""


@dataclass
class Life:
    """One life of the operator. It ends with its `most`-th change, which is made but not answered; None: it is not
    killed.

    Changes in Kafka count only if `of_kafka`. With a small `most` a story would never end: nobody can see that a broker
    has been told the directory of a replica that does not exist yet, and each new operator resets throttles again.
    """

    most: int | None = None
    of_kafka: bool = False
    trouble: Trouble | None = None
    changes: list[str] = field(default_factory=list)
    dead: bool = False

    def goes_on(self) -> None:
        if self.dead:
            raise Killed

    def changed(self, what: str) -> None:
        self.changes.append(what)
        self.dead = self.most is not None and len(self.changes) >= self.most
        self.goes_on()


class LivingApi(KubernetesApi):
    """The operator's own API client, without the network."""

    def __init__(self, world: LivesWorld, life: Life) -> None:
        super().__init__(ApiAccess("nowhere"))
        self._world, self._life = world, life
        self.clock = ServerClock(world.time.time, world.time.monotonic)

    async def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None, query: Mapping[str, str] | None, content_type: str
    ) -> tuple[int, bytes, float]:
        self._life.goes_on()
        trouble = self._life.trouble
        befalls = trouble.of(path) if trouble is not None else ""
        if befalls == "cut":
            raise OSError("cut off")
        if trouble is not None and befalls == "busy":
            return trouble.random.choice((429, 500, 503)), b'{"reason": "Busy", "message": "busy"}', 0.0
        data = b"" if body is None else json.dumps(body).encode()
        status, text = await self._world.kube.answer(method, path, data, query or {}, content_type)
        if befalls == "lost":
            raise TimeoutError("no answer")
        if method != "GET" and status < 400:
            self._life.changed(f"{method} {path}")
        return status, text, 0.0


class Time:
    """The clock of the world, which advances only with its steps."""

    def __init__(self) -> None:
        self.passed = 0.0

    def monotonic(self) -> float:
        return self.passed

    def time(self) -> float:
        return BEGAN + self.passed

    def written(self) -> str:
        return clock._written(self.time())


class LivesWorld:
    """Kubernetes, Kafka, and one life of the operator after the other."""

    def __init__(self, data: Path) -> None:
        self.time = Time()
        self.kube = StillKubernetes(data)
        self.kafka = StillKafka()
        self.trouble: Trouble | None = None
        self.lives: list[Life] = []
        self.findings: list[str] = []
        self.most_down = 1
        self._were_up: set[str] = set()

    # What a user does.

    async def apply(self, kind: str, name: str, spec: Mapping[str, Any], **annotations: str) -> None:
        metadata = {"name": name, "namespace": KEY.namespace, "annotations": annotations}
        body = {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": dict(spec)}
        path = path_of(API_VERSION, KINDS[kind], KEY.namespace, name)
        await self.kube.ask("PATCH", path, body, fieldManager="person", force="true")

    async def cluster(self, **spec: Any) -> None:
        await self.apply("KafkaCluster", KEY.name, spec)

    async def topic(self, name: str, **spec: Any) -> None:
        await self.apply("KafkaTopic", name, {"clusterRef": {"name": KEY.name}, **spec})

    async def reassign(self, name: str, **spec: Any) -> None:
        await self.apply("Reassignment", name, {"clusterRef": {"name": KEY.name}, **spec})

    async def merge(self, api_version: str, plural: str, name: str, body: Object) -> None:
        await self.kube.ask("PATCH", path_of(api_version, plural, KEY.namespace, name), body)

    async def delete(self, api_version: str, plural: str, name: str) -> None:
        await self.kube.ask("DELETE", path_of(api_version, plural, KEY.namespace, name))

    def get(self, kind: str, name: str) -> Object | None:
        return self.kube.find(API_VERSION, KINDS[kind], name)

    # Lives.

    async def live(self, most: int | None, looks: int = MOST_LOOKS) -> bool:
        """Run one life; whether it ended with nothing left to do, rather than being killed."""
        life = Life(most, most is not None and most >= KAFKA_COUNTS_FROM, self.trouble)
        self.lives.append(life)
        with self._at_work(life):
            api = LivingApi(self, life)
            cache = Cache()
            writer = Writer(api, cache)
            shared = Shared(api, cache, writer, Events(api, api.clock.now), Metrics(), api.clock.now)
            cycle = ClusterCycle(KEY, shared)
            try:
                return await self._look_and_look(cycle, cache, looks)
            except Killed:
                self.step()
                return False

    async def _look_and_look(self, cycle: ClusterCycle, cache: Cache, looks: int) -> bool:
        quiet, before = 0, ""
        for _ in range(looks):
            self._hear(cache)
            await cycle.run(Work({topic.key for topic in cache.topics_of(KEY)}, reassignments=True, cluster=True))
            self.step()
            now = self._state()
            quiet, before = (quiet + 1 if now == before else 0), now
            if quiet >= QUIET_LOOKS:
                return True
        return False

    async def settle(self, most: int | None = None, lives: int = 1, looks: int = MOST_LOOKS) -> None:
        """Run one life after the other until one has nothing left to do."""
        for _ in range(lives):
            if await self.live(most, looks):
                return
        last = [life.changes for life in self.lives[-3:]]
        raise AssertionError(f"no end after {lives} lives; the last did {last}\n{self.told()}")

    def _hear(self, cache: Cache) -> None:
        put: dict[str, Callable[[Mapping[str, Any]], object]] = {
            "KafkaCluster": cache.clusters.put, "KafkaTopic": cache.put_topic, "Reassignment": cache.put_reassignment,
        }  # fmt: skip
        remove: dict[str, Callable[[Key, str], object]] = {
            "KafkaCluster": cache.clusters.remove, "KafkaTopic": cache.remove_topic,
            "Reassignment": cache.remove_reassignment,
        }  # fmt: skip
        held: dict[str, Any] = {
            "KafkaCluster": cache.clusters, "KafkaTopic": cache.topics, "Reassignment": cache.reassignments,
        }  # fmt: skip
        for kind, plural in KINDS.items():
            there = {body["metadata"]["uid"]: body for body in self.kube.all(f"{plural}.{GROUP}")}
            for known in list(held[kind].metas()):
                if known.uid not in there:
                    remove[kind](known.key, known.uid)
            for body in there.values():
                put[kind](body)
        cache.clusters.listed.add(None)
        cache.topics.listed.add(None)

    @contextmanager
    def _at_work(self, life: Life) -> Iterator[None]:
        """Replace threads, time, randomness and Kafka connections by those of this world."""

        def asked(_: Any) -> None:
            life.goes_on()

        def answered(request: Any) -> None:
            if life.of_kafka and type(request).__name__.startswith(CHANGES):
                life.changed(f"Kafka {type(request).__name__}")

        async def at_once(function: Callable[..., Any], *arguments: Any) -> Any:
            return function(*arguments)

        def connection(settings: Any) -> StillConnection:
            return StillConnection(settings, self.kafka, asked, answered)

        with (
            patch.object(clock, "time", self.time),
            patch.object(meta, "now", self.time.written),
            patch.object(connections, "KafkaConnection", connection),
            patch.object(kube_objects, "uuid", SimpleNamespace(uuid4=lambda: UUID(int=7))),
            patch.object(asyncio, "to_thread", at_once),
            patch.object(asyncio, "sleep", self._sleep),
        ):
            yield

    async def _sleep(self, seconds: float) -> None:
        if seconds:
            self.step(seconds)

    # What happens by itself, and what must never happen.

    def step(self, seconds: float = LOOK_SECONDS) -> None:
        self.time.passed += seconds
        with patch.object(meta, "now", self.time.written):
            self.kube.step()
        identity = self.kube.find("v1", "configmaps", f"{KEY.name}-identity")
        data = identity["data"] if identity is not None else {"voters": "", "clusterId": ""}
        voters = [int(one) for one in data["voters"].split(",") if one]
        self.kafka.step(self.kube.nodes(KEY.name), voters, data["clusterId"])
        self._judge()

    def _judge(self) -> None:
        stateful_set = self.kube.find("apps/v1", "statefulsets", KEY.name)
        wanted = stateful_set["spec"]["replicas"] if stateful_set is not None else 0
        names = {f"{KEY.name}-{ordinal}" for ordinal in range(wanted)}
        up = {f"{KEY.name}-{broker}" for broker in self.kafka.brokers}
        down = (self._were_up & names) - up
        self._were_up = (self._were_up & names) | up
        if len(down) > self.most_down:
            self._finding(f"down at the same time: {sorted(down)}")
        alone = self.most_down >= len(self.kafka.voters)
        if self._were_up and not alone and self.kafka.leader < 0:
            self._finding(f"no majority of {sorted(self.kafka.voters)} is up")
        found = [claim["metadata"] for claim in self.kube.all("persistentvolumeclaims.")]
        claims = {claim["uid"] for claim in found}
        drained = {claim["uid"] for claim in found if DRAINED in (claim.get("annotations") or {})}
        for (topic, index, broker), log in self.kafka.logs.items():
            if log.claim and log.claim not in claims:
                self._finding(f"{topic}-{index} of broker {broker} went with its claim")
            if log.claim in drained:
                self._finding(f"{topic}-{index} of broker {broker} is on a claim that counts as empty")
            if wanted and broker >= wanted:
                self._finding(f"{topic}-{index} was on broker {broker} when that was removed")

    def _finding(self, text: str) -> None:
        if text not in self.findings:
            self.findings.append(text)

    # The end.

    def _state(self) -> str:
        kafka = {
            "topics": {
                name: [topic.config, [(part.replicas, part.target) for part in topic.partitions]]
                for name, topic in self.kafka.topics.items()
            },
            "logs": [(*replica, log.directory, log.future) for replica, log in sorted(self.kafka.logs.items())],
            "configs": {broker: config for broker, config in sorted(self.kafka.configs.items()) if config},
            "quorum": [sorted(self.kafka.voters), self.kafka.version, sorted(self.kafka.registered)],
        }
        objects = {
            f"{key} {body['metadata']['name']}": body["metadata"]["resourceVersion"]
            for key in self.kube.store.resources() for body in self.kube.all(key)
        }  # fmt: skip
        return json.dumps([kafka, objects, self.kafka.brokers], default=str)

    def end(self) -> Object:
        """The final state, without what may differ from run to run: ids, times, which broker has a replica."""
        found: Object = {}
        for key in self.kube.store.resources():
            if key.startswith(("controllerrevisions.", "events.")):
                continue
            for body in self.kube.all(key):
                name, shown = _shown(key, body)
                found[f"{key} {name}"] = shown
        found["topics"] = {
            name: [topic.config, sorted(len(part.target or part.replicas) for part in topic.partitions)]
            for name, topic in sorted(self.kafka.topics.items())
        }
        found["brokers"] = {
            "up": self.kafka.brokers, "registered": sorted(self.kafka.registered), "voters": sorted(self.kafka.voters),
            "configs": {broker: config for broker, config in sorted(self.kafka.configs.items()) if config},
            "used": sorted({broker for _, _, broker in self.kafka.logs}),
        }  # fmt: skip
        return found

    def told(self) -> str:
        lines = []
        for kind, plural in KINDS.items():
            for body in self.kube.all(f"{plural}.{GROUP}"):
                status = body.get("status") or {}
                said = [(c["type"], c["status"], c["reason"], c["message"]) for c in status.get("conditions") or ()]
                lines.append(f"{kind} {body['metadata']['name']}: {status.get('phase', '')} {said}")
        return "\n".join(lines)


VOLATILE = {
    "uid", "resourceVersion", "generation", "managedFields", "creationTimestamp", "volumeName", "clusterIP",
    "clusterIPs", "binaryData", f"{GROUP}/applied",
}  # fmt: skip


def _shown(key: str, body: Object) -> tuple[str, Object]:
    name = re.sub(r"-plan-[0-9a-f]{10}-", "-plan-", body["metadata"]["name"])
    body = json.loads(json.dumps(body))
    status = body.pop("status", None) or {}
    said = [(one["type"], one["status"], one.get("reason")) for one in status.get("conditions") or ()]
    if "-plan-" in name:
        body["metadata"].pop("name")
    labels = body["metadata"].get("labels") or {}
    labels.pop("controller-revision-hash", None)
    if key.endswith(GROUP):
        body["said"] = [*said, status.get("phase")]
    return name, _without_volatile(body)


def _without_volatile(found: Any) -> Any:
    if isinstance(found, dict):
        return {key: _without_volatile(value) for key, value in found.items() if key not in VOLATILE}
    return [_without_volatile(one) for one in found] if isinstance(found, list) else found


def differences(one: Object, other: Object) -> list[str]:
    """Where two final states differ."""
    return list(_differences("", one, other))


def _differences(where: str, one: Any, other: Any) -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}):
            yield from _differences(f"{where}/{key}", one.get(key), other.get(key))
    elif one != other:
        yield f"{where}: {str(one)[:300]} and {str(other)[:300]}"


Deed = Callable[[LivesWorld], Awaitable[None]]


@dataclass(frozen=True)
class Story:
    """Deeds that set the scene, each until all is settled; then the deeds of the story, `apart` short lives apart, so
    that a deed comes in the middle of what the last one caused."""

    before: Sequence[Deed]
    deeds: Sequence[Deed]
    apart: int = 3


async def told(
    story: Story, data: Path, most: int | None, lives: int = MOST_LIVES, trouble: Trouble | None = None
) -> LivesWorld:
    """Play a story in which each life ends with its `most`-th change, or with such faults; return its world."""
    world = LivesWorld(data)
    await world.kube.begin()
    for deed in story.before:
        await deed(world)
        await world.settle()
    world.lives.clear()
    world.trouble = trouble
    for index, deed in enumerate(story.deeds):
        if index:
            for _ in range(story.apart):
                await world.live(most, looks=1)
        await deed(world)
    await world.settle(most, lives)
    return world
