"""Access control entries: the entry, filters over entries, and the decision they add up to. PURE.

`AclIndex` is updated incrementally with the image and finds the entries for a resource without scanning the others. It
decides as Apache Kafka's StandardAuthorizer does: DENY takes precedence over ALLOW; READ, WRITE, DELETE and ALTER imply
DESCRIBE, ALTER_CONFIGS implies DESCRIBE_CONFIGS.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple


class Operation(IntEnum):
    """Kafka's operation codes."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class ResourceKind(IntEnum):
    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


CLUSTER_NAME = "kafka-cluster"
WILDCARD = "*"
EVERYBODY = "User:*"
_IMPLIED_BY = {
    Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}


class Acl(NamedTuple):
    """One entry; codes are kept as received, even unknown ones."""

    kind: int
    name: str
    pattern: int
    principal: str
    host: str
    operation: int
    permission: int

    @classmethod
    def of(cls, record: Any) -> Acl:
        return cls(
            record.resource_type,
            record.resource_name,
            record.pattern_type,
            record.principal,
            record.host,
            record.operation,
            record.permission_type,
        )


class AclFilter(NamedTuple):
    """The filter of DescribeAcls and DeleteAcls; None and ANY match everything."""

    kind: int
    name: str | None
    pattern: int
    principal: str | None
    host: str | None
    operation: int
    permission: int

    @classmethod
    def of(cls, asked: Any) -> AclFilter:
        return cls(
            asked.resource_type_filter,
            asked.resource_name_filter,
            asked.pattern_type_filter,
            asked.principal_filter,
            asked.host_filter,
            asked.operation,
            asked.permission_type,
        )

    @property
    def exact_acl(self) -> Acl | None:
        """The only entry it can match, or None if it may match several."""
        if self.name is None or self.principal is None or self.host is None:
            return None
        if ResourceKind.ANY in (self.kind, self.operation, self.permission):
            return None
        if self.pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
            return None
        return Acl(self.kind, self.name, self.pattern, self.principal, self.host, self.operation, self.permission)

    def matches(self, acl: Acl) -> bool:
        return (
            self.kind in (ResourceKind.ANY, acl.kind)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self._means_pattern(acl)
        )

    def _means_pattern(self, acl: Acl) -> bool:
        if self.pattern == PatternType.MATCH:
            return self.name is None or covers(acl, self.name)
        return self.pattern in (PatternType.ANY, acl.pattern) and self.name in (None, acl.name)


def covers(acl: Acl, name: str) -> bool:
    """Whether the entry's pattern matches a resource of this name."""
    if acl.pattern == PatternType.PREFIXED:
        return name.startswith(acl.name)
    return acl.name in (name, WILDCARD)


class Who(NamedTuple):
    """A requester as named in entries: `User:alice`, and the address as Java writes it."""

    principal: str
    host: str

    @property
    def named_by(self) -> tuple[tuple[str, str], ...]:
        """The (principal, host) pairs of entries that match the requester."""
        return (
            (self.principal, self.host),
            (self.principal, WILDCARD),
            (EVERYBODY, self.host),
            (EVERYBODY, WILDCARD),
        )


Grant = tuple[int, int]  # permission and operation
_Entries = dict[tuple[str, str], Counter[Grant]]  # (principal, host) → counted, as a log may repeat an entry
_Pattern = tuple[int, str]  # type and name


def _grants(operation: int) -> frozenset[Grant]:
    implying = _IMPLIED_BY.get(Operation(operation), ())
    return frozenset((int(Permission.ALLOW), int(each)) for each in (Operation.ALL, operation, *implying))


ALLOWING = {operation: _grants(operation) for operation in Operation}
DENYING = {
    operation: frozenset((int(Permission.DENY), int(each)) for each in (Operation.ALL, operation))
    for operation in Operation
}


class AclIndex:
    def __init__(self) -> None:
        self._kinds: dict[int, dict[_Pattern, _Entries]] = {}
        self._prefix_lengths: dict[int, Counter[int]] = {}

    def add(self, acl: Acl) -> None:
        patterns = self._kinds.setdefault(acl.kind, {})
        pattern = (acl.pattern, acl.name)
        if pattern not in patterns:
            patterns[pattern] = {}
            if acl.pattern == PatternType.PREFIXED:
                self._prefix_lengths.setdefault(acl.kind, Counter())[len(acl.name)] += 1
        patterns[pattern].setdefault((acl.principal, acl.host), Counter())[acl.permission, acl.operation] += 1

    def remove(self, acl: Acl) -> None:
        patterns = self._kinds[acl.kind]
        pattern, who = (acl.pattern, acl.name), (acl.principal, acl.host)
        entries = patterns[pattern]
        _take_one(entries[who], (acl.permission, acl.operation))
        if not entries[who]:
            del entries[who]
        if entries:
            return
        del patterns[pattern]
        if acl.pattern == PatternType.PREFIXED:
            _take_one(self._prefix_lengths[acl.kind], len(acl.name))

    def decide(self, who: Who, operation: Operation, kind: int, name: str) -> bool | None:
        """Whether the operation is allowed; None if no entry for anybody matches the resource."""
        found = allowed = False
        denying, allowing = DENYING[operation], ALLOWING[operation]
        named_by = who.named_by
        for entries in self._for(kind, name):
            found = True
            for each in named_by:
                granted = entries.get(each)
                if granted is None:
                    continue
                if not denying.isdisjoint(granted):
                    return False
                allowed = allowed or not allowing.isdisjoint(granted)
        return allowed if found else None

    def _for(self, kind: int, name: str) -> Iterator[_Entries]:
        patterns = self._kinds.get(kind)
        if not patterns:
            return
        candidates = [(int(PatternType.LITERAL), name)]
        if name != WILDCARD:
            candidates.append((int(PatternType.LITERAL), WILDCARD))
        candidates += [
            (int(PatternType.PREFIXED), name[:length])
            for length in self._prefix_lengths.get(kind, ())
            if length <= len(name)
        ]
        for pattern in candidates:
            entries = patterns.get(pattern)
            if entries is not None:
                yield entries

    def decide_for_any(self, who: Who, operation: Operation, kind: int) -> bool:
        """Whether the entries allow the operation on any resource of this kind; without implied ones, as in Kafka."""
        exactly = {(int(Permission.ALLOW), int(each)) for each in (Operation.ALL, operation)}
        allowed: list[_Pattern] = []
        denied: set[_Pattern] = set()
        for pattern, entries in self._kinds.get(kind, {}).items():
            for each in who.named_by:
                granted = entries.get(each, Counter())
                if not DENYING[operation].isdisjoint(granted):
                    denied.add(pattern)
                if not exactly.isdisjoint(granted):
                    allowed.append(pattern)
        everything = (int(PatternType.LITERAL), WILDCARD)
        if everything in denied:
            return False
        return any(pattern == everything or not _is_covered(pattern, denied) for pattern in allowed)


def _take_one(counted: Counter[Any], key: Any) -> None:
    counted[key] -= 1
    if not counted[key]:
        del counted[key]


def _is_covered(pattern: _Pattern, denied: set[_Pattern]) -> bool:
    """Whether denied patterns cover everything the pattern allows."""
    kind, name = pattern
    if kind == PatternType.LITERAL and pattern in denied:
        return True
    return any((int(PatternType.PREFIXED), name[:length]) in denied for length in range(1, len(name) + 1))
