"""A Kafka cluster that advances only when told to: it answers the operator's requests from a few dictionaries.

It knows which replica is on which PersistentVolumeClaim, so that it notices when one is lost. Followers are always in
sync; a partition that is reassigned takes a few steps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace as Row
from typing import Any
from uuid import UUID

from ballast_operator.kafka_client import Answer, ConnectionSettings, KafkaUnavailableError
from ballast_operator.resources.names import FIRST_CONTROLLER_ID

MOVING_STEPS = 2
REPLICA_BYTES = 1_000
CORDON = "cordoned.log.dirs"
SET, DELETE, APPEND, SUBTRACT = range(4)
BROKER_RESOURCE, DYNAMIC_BROKER = 4, 2
NO_TOPIC, NOT_YET, EXISTS, NO_MOVE = 3, 9, 36, 85


@dataclass
class Node:
    """What runs in a ready pod: the claims of its log directories, whether it is a controller as well, and the part of
    its configuration that must never change (the metadata log's directory and the default replication factor)."""

    claims: Mapping[str, str]
    controls: bool
    born: tuple[str, str] = ("", "")


@dataclass
class Partition:
    replicas: list[int]
    target: list[int] | None = None
    steps: int = 0

    @property
    def adding(self) -> list[int]:
        return [one for one in self.target or () if one not in self.replicas]

    @property
    def removing(self) -> list[int]:
        return [one for one in self.replicas if self.target is not None and one not in self.target]


@dataclass
class Log:
    directory: str
    claim: str
    future: str | None = None


@dataclass
class Topic:
    id: UUID
    partitions: list[Partition]
    config: dict[str, str] = field(default_factory=dict)


Replica = tuple[str, int, int]


class StillKafka:
    def __init__(self) -> None:
        self.cluster_id = ""
        self.nodes: dict[int, Node] = {}
        self.registered: set[int] = set()
        self.topics: dict[str, Topic] = {}
        self.logs: dict[Replica, Log] = {}
        self.chosen: dict[Replica, str] = {}
        self.configs: dict[int, dict[str, str]] = {}
        self.voters: set[int] = set()
        self.version = 0
        self.offset = 0
        self.findings: list[str] = []
        self._ids = 0
        self._born: dict[int, tuple[str, str]] = {}

    @property
    def brokers(self) -> list[int]:
        return sorted(node for node in self.nodes if node < FIRST_CONTROLLER_ID)

    # What happens by itself.

    def step(self, nodes: Mapping[int, Node], voters: Collection[int], cluster_id: str) -> None:
        """Advance with these nodes. Only the first `voters` that are not empty count."""
        self.nodes, self.cluster_id = dict(nodes), cluster_id
        self.voters = self.voters or set(voters)
        self.offset += 1
        self.registered |= set(self.brokers)
        for number, one in self.nodes.items():
            if self._born.setdefault(number, one.born) != one.born:
                self._finding(f"node {number} was born with {self._born[number]}, and is told {one.born}")
        for name, topic in self.topics.items():
            for index, part in enumerate(topic.partitions):
                self._go_on(name, index, part)
        for log in self.logs.values():
            if log.future is not None:
                log.directory, log.future = log.future, None
        for (name, index, broker), log in self.logs.items():
            node = self.nodes.get(broker)
            if node is not None:
                log.claim = log.claim or node.claims.get(log.directory, "")
                if node.claims.get(log.directory) != log.claim:
                    self._finding(f"{name}-{index} of broker {broker} is lost with {log.directory}")

    def _go_on(self, name: str, index: int, part: Partition) -> None:
        for broker in [*part.replicas, *part.adding]:
            if (name, index, broker) not in self.logs and broker in self.nodes:
                self.logs[name, index, broker] = self._placed(broker, self.chosen.pop((name, index, broker), None))
        if part.target is None or not set(part.target) <= set(self.nodes):
            return
        part.steps += 1
        if part.steps >= MOVING_STEPS:
            for broker in part.removing:
                self.logs.pop((name, index, broker), None)
            part.replicas, part.target, part.steps = part.target, None, 0

    def _placed(self, broker: int, asked_for: str | None) -> Log:
        """A new replica, in the directory requested in advance, else in the emptiest one that is not cordoned."""
        cordoned = self.configs.get(broker, {}).get(CORDON, "").split(",")
        free = [one for one in self.nodes[broker].claims if one not in cordoned and "*" not in cordoned]
        if not free:
            self._finding(f"broker {broker} was given a replica and takes none")
            free = list(self.nodes[broker].claims)
        held = [log.directory for (_, _, on), log in self.logs.items() if on == broker]
        chosen = asked_for or min(free, key=lambda one: (held.count(one), one))
        return Log(chosen, self.nodes[broker].claims[chosen])

    def _finding(self, text: str) -> None:
        if text not in self.findings:
            self.findings.append(text)

    def make_topic(self, name: str, rows: Sequence[Sequence[int]], config: Mapping[str, str]) -> UUID:
        self._ids += 1
        topic = self.topics[name] = Topic(UUID(int=self._ids), [Partition(list(row)) for row in rows], dict(config))
        return topic.id

    # Read requests.

    def answer(self, request: Any, node: int | None) -> Any:
        if node is not None and node not in self.nodes:
            raise KafkaUnavailableError(f"broker {node} does not answer")
        if not self.brokers:
            raise KafkaUnavailableError("no broker answers")
        handler: Callable[[Any, int | None], Any] = getattr(self, f"_{type(request).__name__.removesuffix('Request')}")
        return handler(request, node)

    def _DescribeCluster(self, _: Any, __: int | None) -> Any:
        rows = [
            Row(broker_id=one, host=f"host-{one}", port=9092, rack=None, is_fenced=one not in self.nodes)
            for one in sorted(self.registered)
        ]
        return Row(error_code=0, version=2, cluster_id=self.cluster_id, controller_id=self.brokers[0], brokers=rows)

    def _ApiVersions(self, _: Any, __: int | None) -> Any:
        return Row(finalized_features=[Row(name="kraft.version", max_version_level=self.version)])

    @property
    def leader(self) -> int:
        up = sorted(self.voters & {node for node, one in self.nodes.items() if one.controls})
        return up[0] if 2 * len(up) > len(self.voters) else -1

    def _DescribeQuorum(self, _: Any, __: int | None) -> Any:
        now = self.offset * 10_000
        everybody = self.voters | set(self.nodes)
        rows = {
            node: Row(
                replica_id=node, replica_directory_id=UUID(int=node + 1),
                log_end_offset=self.offset if node in self.nodes else 0,
                last_fetch_timestamp=now if node in self.nodes else 0,
                last_caught_up_timestamp=now if node in self.nodes else 0,
            )
            for node in sorted(everybody)
        }  # fmt: skip
        part = Row(
            error_code=0 if self.leader >= 0 else 6, leader_id=self.leader, leader_epoch=1, high_watermark=self.offset,
            current_voters=[row for node, row in rows.items() if node in self.voters],
            observers=[row for node, row in rows.items() if node not in self.voters],
        )  # fmt: skip
        return Row(error_code=0, topics=[Row(partitions=[part])], nodes=[])

    def _UpdateFeatures(self, _: Any, __: int | None) -> Any:
        self.version = 1
        return _fine()

    def _AddRaftVoter(self, request: Any, _: int | None) -> Any:
        self.voters.add(request.voter_id)
        return _fine()

    def _RemoveRaftVoter(self, request: Any, _: int | None) -> Any:
        self.voters.discard(request.voter_id)
        return _fine()

    def _UnregisterBroker(self, request: Any, _: int | None) -> Any:
        self.registered.discard(request.broker_id)
        return _fine()

    def _Metadata(self, request: Any, _: int | None) -> Any:
        names = self.topics if request.topics is None else [row.name for row in request.topics]
        return Row(topics=[self._told(name) for name in sorted(names)])

    def _told(self, name: str) -> Any:
        topic = self.topics.get(name)
        if topic is None:
            return Row(name=name, error_code=NO_TOPIC, partitions=[])
        rows = []
        for index, part in enumerate(topic.partitions):
            everywhere = [*part.replicas, *part.adding]
            isr = [one for one in part.replicas if one in self.nodes]
            leader = isr[0] if isr else -1
            rows.append(Row(partition_index=index, leader_id=leader, replica_nodes=everywhere, isr_nodes=isr))
        return Row(name=name, error_code=0, topic_id=topic.id, partitions=rows)

    def _ListPartitionReassignments(self, _: Any, __: int | None) -> Any:
        topics = []
        for name, topic in self.topics.items():
            rows = [
                Row(
                    partition_index=index, replicas=[*part.replicas, *part.adding],
                    adding_replicas=part.adding, removing_replicas=part.removing,
                )
                for index, part in enumerate(topic.partitions) if part.target is not None
            ]  # fmt: skip
            topics.append(Row(name=name, partitions=rows))
        return Row(error_code=0, topics=topics)

    def _DescribeConfigs(self, request: Any, _: int | None) -> Any:
        return Row(results=[self._configs_of(kind, name, keys) for kind, name, keys in request.resources])

    def _configs_of(self, kind: int, name: str, keys: Collection[str] | None) -> Any:
        if kind == BROKER_RESOURCE:
            roles = "broker,controller" if self.nodes[int(name)].controls else "broker"
            found = [Row(name=key, value=value, config_source=2) for key, value in self._of_broker(int(name)).items()]
            found.append(Row(name="process.roles", value=roles, config_source=4))
        elif name not in self.topics:
            return Row(error_code=NO_TOPIC, resource_name=name, configs=[])
        else:
            own = self.topics[name].config
            found = [Row(name=key, value=value, config_source=1) for key, value in own.items()]
            if "min.insync.replicas" not in own:
                found.append(Row(name="min.insync.replicas", value="1", config_source=5))
        return Row(error_code=0, resource_name=name, configs=[one for one in found if keys is None or one.name in keys])

    def _of_broker(self, broker: int) -> dict[str, str]:
        return self.configs.setdefault(broker, {})

    def _DescribeLogDirs(self, request: Any, node: int | None) -> Any:
        assert node is not None
        asked = None if request.topics is None else {row.topic: set(row.partitions) for row in request.topics}
        results = []
        for directory in self.nodes[node].claims:
            topics = []
            for (name, index, broker), log in self.logs.items():
                if broker == node and (asked is None or index in asked.get(name, ())):
                    for path, future in ((log.directory, False), (log.future, True)):
                        if path == directory:
                            part = Row(partition_index=index, partition_size=REPLICA_BYTES, is_future_key=future)
                            topics.append(Row(name=name, partitions=[part]))
            cordoned = directory in self._of_broker(node).get(CORDON, "").split(",")
            room = {"total_bytes": 1 << 40, "usable_bytes": 1 << 39, "is_cordoned": cordoned}
            results.append(Row(error_code=0, log_dir=directory, topics=topics, **room))
        return Row(error_code=0, results=results)

    # Changing requests.

    def _CreateTopics(self, request: Any, _: int | None) -> Any:
        rows = []
        for row in request.topics:
            code, topic_id = (EXISTS, "") if row.name in self.topics else (0, "")
            if not code:
                given = {one.partition_index: list(one.broker_ids) for one in row.assignments}
                spread = [self._spread(index, row.replication_factor) for index in range(max(0, row.num_partitions))]
                config = {one.name: one.value for one in row.configs}
                topic_id = str(self.make_topic(row.name, [given[each] for each in sorted(given)] or spread, config))
            rows.append(Row(name=row.name, error_code=code, error_message=None, topic_id=topic_id))
        return Row(topics=rows)

    def _spread(self, index: int, replicas: int) -> list[int]:
        free = [one for one in self.brokers if self._of_broker(one).get(CORDON) != "*"]
        return [free[(index + each) % len(free)] for each in range(min(max(replicas, 1), len(free)))]

    def _CreatePartitions(self, request: Any, _: int | None) -> Any:
        rows = []
        for row in request.topics:
            parts = self.topics[row.name].partitions
            given = [list(one.broker_ids) for one in row.assignments or ()]
            while len(parts) < row.count:
                parts.append(Partition(given.pop(0) if given else self._spread(len(parts), len(parts[0].replicas))))
            rows.append(Row(name=row.name, error_code=0, error_message=None))
        return Row(results=rows)

    def _DeleteTopics(self, request: Any, _: int | None) -> Any:
        rows = []
        for row in request.topics:
            name = next((name for name, topic in self.topics.items() if topic.id == row.topic_id), None)
            if name is not None:
                del self.topics[name]
                self.logs = {replica: log for replica, log in self.logs.items() if replica[0] != name}
            rows.append(Row(name=name, topic_id=row.topic_id, error_code=0 if name else 100, error_message=None))
        return Row(responses=rows)

    def _IncrementalAlterConfigs(self, request: Any, _: int | None) -> Any:
        rows = []
        for row in request.resources:
            kind, name = row.resource_type, row.resource_name
            held = self._of_broker(int(name)) if kind == BROKER_RESOURCE else self.topics[name].config
            for one in row.configs:
                _change(held, one.name, one.config_operation, one.value)
            rows.append(Row(resource_name=name, error_code=0, error_message=None))
        return Row(responses=rows)

    def _AlterPartitionReassignments(self, request: Any, _: int | None) -> Any:
        topics = []
        for row in request.topics:
            rows = []
            for one in row.partitions:
                part = self.topics[row.name].partitions[one.partition_index]
                code = NO_MOVE if one.replicas is None and part.target is None else 0
                wanted = None if one.replicas is None else list(one.replicas)
                part.target, part.steps = (None if wanted == part.replicas else wanted), 0
                rows.append(Row(partition_index=one.partition_index, error_code=code, error_message=None))
            topics.append(Row(name=row.name, partitions=rows))
        return Row(error_code=0, error_message=None, responses=topics)

    def _AlterReplicaLogDirs(self, request: Any, node: int | None) -> Any:
        assert node is not None
        topics = []
        for row in request.dirs:
            for topic in row.topics:
                for index in topic.partitions:
                    known = self.logs.get((topic.name, index, node))
                    if known is None:
                        self.chosen[topic.name, index, node] = row.path
                    elif known.directory != row.path:
                        known.future, known.claim = row.path, self.nodes[node].claims[row.path]
                rows = [
                    Row(partition_index=index, error_code=0 if (topic.name, index, node) in self.logs else NOT_YET)
                    for index in topic.partitions
                ]
                topics.append(Row(topic_name=topic.name, partitions=rows))
        return Row(results=topics)


def _fine() -> Any:
    return Row(error_code=0, error_message=None)


def _change(held: dict[str, str], key: str, operation: int, value: str | None) -> None:
    entries = [one for one in held.get(key, "").split(",") if one]
    if operation == DELETE:
        held.pop(key, None)
    elif operation == SET:
        held[key] = value or ""
    elif operation == APPEND:
        held[key] = ",".join(dict.fromkeys([*entries, *(value or "").split(",")]))
    else:
        held[key] = ",".join(one for one in entries if one not in (value or "").split(","))


class StillConnection:
    """Replaces KafkaConnection. `asked` is called with each request before it is answered, `answered` afterwards;
    either may end the operator's life."""

    def __init__(
        self,
        settings: ConnectionSettings,
        kafka: StillKafka,
        asked: Callable[[Any], None],
        answered: Callable[[Any], None],
    ) -> None:
        self.settings = settings
        self._kafka = kafka
        self._asked, self._answered = asked, answered

    async def send(self, request: Any, node: int | None = None) -> Any:
        self._asked(request)
        response = self._kafka.answer(request, node)
        self._answered(request)
        return response

    async def send_to_controller(self, request: Any, _: Any) -> Any:
        return await self.send(request)

    async def send_all_to_controller(self, requests: Sequence[Any], _: Any) -> list[Answer]:
        return [Answer(await self.send(request)) for request in requests]

    async def send_each(self, requests: Mapping[int, Any]) -> dict[int, Any]:
        found: dict[int, Any] = {}
        for node, request in requests.items():
            try:
                found[node] = await self.send(request, node)
            except KafkaUnavailableError as error:
                found[node] = error
        return found

    async def supports(self, _: Any) -> bool:
        return True

    async def close(self) -> None:
        pass
