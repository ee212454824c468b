"""One question, asked for every request: may this principal do that? Allows everything until ACLs are built."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from ballast_broker.net_reply import Principal


class Operation(IntEnum):
    """Kafka's codes of what can be done to a resource."""

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


class ResourceKind(IntEnum):
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


class Resource(NamedTuple):
    kind: ResourceKind
    name: str


CLUSTER = Resource(ResourceKind.CLUSTER, "kafka-cluster")


def topic(name: str) -> Resource:
    return Resource(ResourceKind.TOPIC, name)


def group(name: str) -> Resource:
    return Resource(ResourceKind.GROUP, name)


def transactional_id(name: str) -> Resource:
    return Resource(ResourceKind.TRANSACTIONAL_ID, name)


def authorize(principal: Principal, operation: Operation, resource: Resource) -> bool:
    """Security is a room to furnish: every handler asks here, so that ACLs change this function and nothing else."""
    del principal, operation, resource
    return True


_SUPPORTED = {
    ResourceKind.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceKind.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceKind.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
}


def authorized_operations(principal: Principal, resource: Resource) -> int:
    """The bit field that answers `include…AuthorizedOperations`: bit n is operation n."""
    return sum(1 << op for op in _SUPPORTED[resource.kind] if authorize(principal, op, resource))
