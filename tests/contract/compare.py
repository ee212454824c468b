"""Sends the same requests to Apache Kafka and to Ballast, and reports field by field where the responses differ.

The requests are in `corpus/*.yaml`, sent in the order of the files and of their cases; later cases may use what earlier
ones created. Values that cannot be equal (ids, ports, paths, times) are replaced by placeholders; entries of lists are
matched by their names or ids, not by position. Intended differences are listed, with the reason, in `differences.yaml`.

A case with a `user` is sent by an authenticated client: with PLAIN, or with a saved delegation token (`$token:NAME` is
the token whose response was saved as NAME).

    python -m tests.contract.compare KAFKA_PORT BALLAST_PORT KAFKA_DATA BALLAST_DATA     compares two running nodes
"""

from __future__ import annotations

import base64
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import yaml
from tests.contract.logins import TokenClient, log_in, log_in_by
from tests.contract.nodes import Node
from tests.contract.wire import WireClient

from ballast_wire.messages import message
from ballast_wire.records import (
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC,
    TIMESTAMP_TYPE_MASK,
    Header,
    Record,
    encode_batch,
)

HERE = Path(__file__).parent
LOCAL = "127.0.0.1"
MAGIC_POSITION = 16
UNTIL_TIMEOUT_S = 60.0
UNTIL_PAUSE_S = 0.1
ABSENT = "(absent)"
# The timestamp of the first record of each batch: recent, or retention would delete what is compared.
TIMESTAMP_MS = int(time.time()) * 1000 - 60_000
# The fields that identify an entry of a list.
NAMING = (
    "resource_type", "resource_name", "name", "topic", "topic_name", "topic_id", "group_id", "key", "api_key",
    "partition_index", "partition", "partition_id", "broker_id", "node_id", "log_dir", "feature", "replica_id",
    "member_id", "entity_type", "pattern_type", "index", "is_future_key", "transactional_id", "producer_id", "user",
    "mechanism",
)  # fmt: skip
OPAQUE = {
    "cluster_id": "CLUSTER",
    "producer_id": "PRODUCER",
    "session_id": "SESSION",
    "throttle_time_ms": "TIME",
    "total_bytes": "BYTES",
    "transaction_start_time_ms": "TIME",
    "usable_bytes": "BYTES",
    "finalized_features_epoch": "EPOCH",
    "log_end_offset": "OFFSET",
    "high_watermark": "OFFSET",
    "last_fetch_timestamp": "TIME",
    "last_caught_up_timestamp": "TIME",
    "replica_directory_id": "DIRECTORY",
    "token_id": "TOKEN",
    "leader_epoch": "EPOCH",
}
# Compared roughly, by their distance from now.
TIMES = frozenset(f"{each}_timestamp{unit}" for each in ("expiry", "issue", "max") for unit in ("", "_ms"))
TEN_MINUTES_MS = 600_000
# Set by the broker's clock if the record is a marker or its topic has LogAppendTime.
BROKERS_TIMES = frozenset({"last_timestamp", "log_append_time_ms", "timestamp"})
NOTHING = {"session_id": (0,), "throttle_time_ms": (0,)}  # values that are not replaced, if not -1
METADATA_TOPIC_ID = UUID(int=1)
OF_THE_QUORUM = ("DescribeQuorum", "UpdateRaftVoter")
OPAQUE_ONLY_IN = dict.fromkeys(("high_watermark", "leader_epoch", "log_end_offset"), OF_THE_QUORUM)


@dataclass(frozen=True)
class Case:
    file: str
    name: str
    api: str
    versions: tuple[int, ...]
    request: dict[str, Any]
    until: dict[str, Any] | None = None
    save: dict[str, str] = field(default_factory=dict)
    host: str = LOCAL
    at: str = "broker"
    user: str = ""

    def __str__(self) -> str:
        return f"{self.file}: {self.name} ({self.api})"


def corpus(of: str = "corpus") -> list[Case]:
    """The cases of one folder: `corpus` is for brokers, `of_controllers` for controllers, `corpus_acls` for both."""
    cases: list[Case] = []
    for path in sorted((HERE / of).glob("*.yaml")):
        cases += [_case(path.stem, each) for each in yaml.safe_load(path.read_text())]
    return cases


def _case(file: str, each: dict[str, Any]) -> Case:
    versions = tuple(_versions(each["versions"]))
    request, save = each.get("request") or {}, each.get("save") or {}
    origin = each.get("host", LOCAL), each.get("at", "broker"), each.get("user", "")
    return Case(file, each["case"], each["api"], versions, request, each.get("until"), save, *origin)


def _versions(text: Any) -> Iterator[int]:
    for part in str(text).split(","):
        low, _, high = part.strip().partition("-")
        yield from range(int(low), int(high or low) + 1)


class Side:
    """One of the two nodes: its connections, and what must be stripped from its responses."""

    def __init__(self, port: int, log_dirs: list[str], controller_port: int = 0) -> None:
        self._ports = {"broker": port, "controller": controller_port}
        self._log_dirs = log_dirs
        self._clients: dict[tuple[str, str, str], WireClient] = {}
        self._topic_ids: dict[str, UUID] = {}
        self._saved: dict[str, Any] = {}

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    def _client(self, host: str = LOCAL, at: str = "broker", user: str = "") -> WireClient:
        """A connection per origin. Clients without a user are ANONYMOUS and differ by their source address."""
        if (host, at, user) not in self._clients:
            client = self._clients[host, at, user] = WireClient("localhost", self._ports[at], host)
            if user.startswith("$token:"):
                token = self._saved[user.removeprefix("$token:")]
                password = base64.b64encode(bytes.fromhex(token["hmac"])).decode()
                log_in_by(client, "SCRAM-SHA-256", TokenClient("SCRAM-SHA-256", token["token_id"], password))
            elif user:
                log_in(client, user)
        return self._clients[host, at, user]

    def ask(self, case: Case, version: int) -> Any:
        """The response as plain, comparable values, or the name of the error if there was none."""
        deadline = time.monotonic() + UNTIL_TIMEOUT_S
        while True:
            try:
                answer = self._once(case, version)
            except (ConnectionError, TimeoutError) as error:
                self._clients.pop((case.host, case.at, case.user)).close()
                return f"closed: {type(error).__name__}"
            told = self._stripped(case.api, answer)
            if case.until is None or self._is_reached(case.until, answer, told) or time.monotonic() > deadline:
                break
            time.sleep(UNTIL_PAUSE_S)
        for name, path in case.save.items():
            self._saved[name] = _at(answer, path)
        return told

    def _once(self, case: Case, version: int) -> Any:
        self._learn_topic_ids(case.request)
        request = build(message(case.api + "Request"), self._filled(case.request), version)
        return plain(self._client(case.host, case.at, case.user).call(request, version), version)

    @staticmethod
    def _is_reached(until: dict[str, Any], answer: Any, told: Any) -> bool:
        """Whether `until` is reached: a value at its `path` in the response, or at `told` in the stripped response."""
        found = _at(told, until["told"]) if "told" in until else _at(answer, until["path"])
        return bool(found != until["not"] if "not" in until else found == until["is"])

    def _learn_topic_ids(self, request: Any) -> None:
        if "$id:" in str(request):
            answer = self._client().call(message("MetadataRequest")(version=12, topics=None), 12)
            self._topic_ids |= {topic.name: topic.topic_id for topic in answer.topics}

    def _filled(self, value: Any) -> Any:
        """Replace placeholders by this side's values."""
        if isinstance(value, dict):
            if "$batch" in value:
                return batch(value["$batch"])
            return {name: self._filled(each) for name, each in value.items()}
        if isinstance(value, list):
            return [self._filled(each) for each in value]
        if not isinstance(value, str) or not value.startswith("$"):
            return value
        kind, _, name = value[1:].partition(":")
        if kind == "id":
            return self._topic_ids.get(name, UUID(int=0))
        if kind == "uuid":
            return UUID(int=int(name))
        if kind == "time":
            return TIMESTAMP_MS + int(name)
        if kind == "dir":
            return self._log_dirs[int(name)]
        if kind == "hex":
            return bytes.fromhex(name)
        if kind == "bytes":
            return name.encode()
        if kind == "hmac":
            return bytes.fromhex(self._saved[name]["hmac"])
        return self._saved.get(name, "unsaved")

    def _stripped(self, api: str, value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            if value.get("topic_id") == METADATA_TOPIC_ID:  # its epochs depend on how many elections there were
                api = OF_THE_QUORUM[0]
            return {key: self._stripped(api, each, key) for key, each in value.items()}
        if isinstance(value, list):
            stripped = [self._stripped(api, each, name) for each in value]
            return sorted(stripped, key=str) if name == "tokens" else stripped  # their ids are random
        opaque = OPAQUE.get(name)
        if (
            opaque is not None
            and value not in NOTHING.get(name, (-1, "", None))
            and api in OPAQUE_ONLY_IN.get(name, (api,))
        ):
            return opaque
        if isinstance(value, UUID):
            return self._named_id(value)
        if name in BROKERS_TIMES and value > TIMESTAMP_MS + 30_000:
            return "NOW"
        if name == "records" and value:
            return _without_append_times(bytearray.fromhex(value)).hex()
        if name in TIMES and value > 0:
            return f"in {10 * round((value - time.time() * 1000) / TEN_MINUTES_MS)} minutes"
        if name == "hmac" and value:
            return f"HMAC of {len(value) // 2} bytes"
        if name == "port" and value != -1:
            return "PORT"
        return self._stripped_text(value) if isinstance(value, str) else value

    def _named_id(self, value: UUID) -> Any:
        names = [name for name, topic_id in self._topic_ids.items() if topic_id == value]
        if names:
            return f"id of {names[0]}"
        return str(value) if value.int < 1000 else "ID"

    def _stripped_text(self, text: str) -> str:
        for number, path in enumerate(self._log_dirs):
            text = text.replace(path, f"DIR{number}")
        text = re.sub(r"localhost:\d+", "localhost:PORT", text)
        text = re.sub(r"directoryId=(?!A{4})[\w-]{22}", "directoryId=ID", text)
        return re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UUID", text)


def _without_append_times(batches: bytearray) -> bytearray:
    """Zero what the broker has set by its clock (LogAppendTime), and the checksum with it."""
    position = 0
    while position + HEADER_BYTES <= len(batches):
        header = Header._make(HEADER.unpack_from(batches, position))
        if header.attributes & TIMESTAMP_TYPE_MASK and header.max_timestamp > TIMESTAMP_MS + 30_000:
            HEADER.pack_into(batches, position, *header._replace(max_timestamp=0, crc=0))
        position += header.length + LOG_OVERHEAD
    return batches


def batch(wanted: dict[str, Any]) -> bytes:
    """A record batch; the same bytes for both sides. `flip`: corrupt the byte at this position; `times`: repeat the
    batch; `magic`: the format version it claims; `later`: by how many milliseconds its first timestamp is later, and
    `step` the milliseconds between records."""
    keywords = dict(wanted)
    magic = keywords.pop("magic", MAGIC)
    values, flip, times = keywords.pop("values"), keywords.pop("flip", None), keywords.pop("times", 1)
    first, step = TIMESTAMP_MS + keywords.pop("later", 0), keywords.pop("step", 1000)
    records = [
        Record(offset=index, timestamp=first + index * step, key=None, value=value.encode(), headers=())
        for index, value in enumerate(values)
    ]
    encoded = encode_batch(records, **keywords)
    encoded[MAGIC_POSITION] = magic
    if flip is not None:
        encoded[flip] ^= 1
    return bytes(encoded * times)


def build(kind: Any, values: dict[str, Any], version: int) -> Any:
    """A message or struct with plain values; fields that this version lacks are left out."""
    fields = kind._struct.fields
    made = {}
    for name, value in values.items():
        schema = fields[name]
        if not schema.for_version_q(version):
            continue
        if value is not None and schema.is_struct_array():
            value = [build(schema.data_class, each, version) for each in value]
        elif value is not None and schema.is_struct():
            value = build(schema.data_class, value, version)
        made[name] = value
    return kind(version=version, **made)


def plain(value: Any, version: int) -> Any:
    if hasattr(value, "_struct"):
        fields = [each for each in value._struct.fields.values() if each.for_version_q(version)]
        return {each.name: plain(getattr(value, each.name), version) for each in fields}
    if isinstance(value, list):
        return [plain(each, version) for each in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    return value


def _at(answer: Any, path: str) -> Any:
    """The value at a dotted path; an empty path means the whole answer."""
    for step in path.split(".") if path else ():
        try:
            answer = answer[int(step)] if step.isdecimal() else answer[step]
        except (IndexError, KeyError, TypeError):
            return ABSENT
    return answer


@dataclass(frozen=True)
class Difference:
    case: Case
    version: int
    path: str
    kafka: Any
    ballast: Any

    def __str__(self) -> str:
        return f"{self.case} v{self.version} {self.path}: Kafka {self.kafka!r}, Ballast {self.ballast!r}"


def differences(kafka: Any, ballast: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(kafka, dict) and isinstance(ballast, dict):
        for name in {**kafka, **ballast}:
            inner = f"{path}.{name}" if path else name
            yield from differences(kafka.get(name, ABSENT), ballast.get(name, ABSENT), inner)
    elif isinstance(kafka, list) and isinstance(ballast, list):
        theirs, ours = _by_name(kafka), _by_name(ballast)
        for name in {**theirs, **ours}:
            yield from differences(theirs.get(name, ABSENT), ours.get(name, ABSENT), f"{path}[{name}]")
    elif kafka != ballast:
        yield path, kafka, ballast


def _by_name(entries: list[Any]) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for index, each in enumerate(entries):
        name = _name(each) if isinstance(each, dict) else ""
        named[name if name and name not in named else f"{name}#{index}"] = each
    return named


def _name(entry: dict[str, Any]) -> str:
    if "permission_type" in entry:
        return ",".join(map(str, entry.values()))
    if "entity" in entry:
        return "/".join(sorted(f"{each['entity_type']}={each['entity_name']}" for each in entry["entity"])) or "nobody"
    return ",".join(str(entry[key]) or "(empty)" for key in NAMING if key in entry)


@dataclass(frozen=True)
class Known:
    """An intended difference. All fields but `name` and `reason` are patterns to search for."""

    name: str
    reason: str
    api: str
    path: str
    case: str = ""
    kafka: str = ""
    ballast: str = ""

    def covers(self, found: Difference) -> bool:
        checks = (
            (f"^({self.api})$", found.case.api),
            (self.path, found.path),
            (self.case, found.case.name),
            (self.kafka, str(found.kafka)),
            (self.ballast, str(found.ballast)),
        )
        return all(re.search(pattern, text) for pattern, text in checks)


def known_differences(of: str = "corpus") -> list[Known]:
    path = HERE / ("differences.yaml" if of == "corpus" else f"{of}_differences.yaml")
    return [Known(**each) for each in yaml.safe_load(path.read_text()) or []]


def compare(kafka: Side, ballast: Side, cases: list[Case]) -> Iterator[Difference]:
    for case in cases:
        for version in case.versions:
            for path, theirs, ours in differences(kafka.ask(case, version), ballast.ask(case, version)):
                yield Difference(case, version, path, theirs, ours)


def check(found: Iterable[Difference], own: Sequence[Known], others: Sequence[Known] = ()) -> None:
    """Assert that only known differences occur, and that all those known for this corpus (`own`) do."""
    found = list(found)
    unknown = [each for each in found if not any(k.covers(each) for k in (*others, *own))]
    assert not unknown, "\n".join(map(str, unknown))
    stale = [k.name for k in own if not any(k.covers(each) for each in found)]
    assert not stale, "these differences are no longer seen: " + ", ".join(stale)


def check_corpus(nodes: tuple[Node, Node], of: str) -> None:
    with ExitStack() as stack:
        kafka, ballast = (
            stack.enter_context(closing(Side(node.port, node.log_dirs, node.controller_port))) for node in nodes
        )
        check(compare(kafka, ballast, corpus(of)), known_differences(of), known_differences())


def main(arguments: list[str]) -> int:
    ports = [int(each) for each in arguments[:2]]
    roots = arguments[2:4]
    sides = [Side(port, [f"{root}/d1", f"{root}/d2"]) for port, root in zip(ports, roots, strict=True)]
    known = known_differences()
    unknown = [each for each in compare(sides[0], sides[1], corpus()) if not any(k.covers(each) for k in known)]
    for each in unknown:
        print(each)
    print(f"{len(unknown)} unknown differences")
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
