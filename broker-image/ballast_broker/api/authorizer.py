"""Decides whether a principal, from a host, may perform an operation. Consulted for every request.

Decisions are cached until an ACL changes, so that a produce or fetch costs one look-up. Without `authorizer.class.name`
everybody may do everything. Loop thread only.
"""

from __future__ import annotations

import ipaddress
import logging
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ballast_broker.metadata.acls import CLUSTER_NAME, AclIndex, Operation, ResourceKind, Who
from ballast_broker.net_reply import Principal

if TYPE_CHECKING:
    from ballast_broker.api.context import RequestContext
    from ballast_broker.config.broker import BrokerConfig
    from ballast_broker.metadata.delta import MetadataDelta
    from ballast_broker.metadata.image import MetadataImage

__all__ = [
    "ALLOWS_EVERYTHING",
    "CLUSTER",
    "NO_OPERATIONS_ASKED",
    "AclAuthorizer",
    "AclSubject",
    "Authorizer",
    "Operation",
    "Resource",
    "ResourceKind",
    "authorized_operations",
    "authorizer_of",
    "cluster_operations",
    "group",
    "topic",
    "transactional_id",
]

NO_OPERATIONS_ASKED: Final = -(2**31)  # the value if authorized operations were not requested

log = logging.getLogger(__name__)

MOST_REMEMBERED = 50_000
MOST_REMEMBERED_CHARACTERS: Final = 10_000_000  # total size of names: a rejected client may make up any, of 32 KB each
ANY_NAME: Final = "hardcode"  # the resource name Kafka uses to check for access to any resource of a kind


class Resource(NamedTuple):
    kind: ResourceKind
    name: str


CLUSTER: Final = Resource(ResourceKind.CLUSTER, CLUSTER_NAME)


def topic(name: str) -> Resource:
    return Resource(ResourceKind.TOPIC, name)


def group(name: str) -> Resource:
    return Resource(ResourceKind.GROUP, name)


def transactional_id(name: str) -> Resource:
    return Resource(ResourceKind.TRANSACTIONAL_ID, name)


class AclSubject(Protocol):
    """What ACLs can refer to."""

    @property
    def principal(self) -> Principal: ...
    @property
    def host(self) -> str: ...


class Authorizer:
    """Used where no ACLs are enforced: everybody may do everything."""

    enforces = False
    generation = 0
    """Changes whenever any decision may have changed."""

    def allows(self, asker: AclSubject, operation: Operation, resource: Resource) -> bool:
        """Whether the operation is allowed, for somebody about to do it: a refusal is logged."""
        return True

    def would_allow(self, asker: AclSubject, operation: Operation, resource: Resource) -> bool:
        """As `allows` without logging: to filter results, or to report permissions."""
        return True

    def allows_for_any(self, asker: AclSubject, operation: Operation, kind: ResourceKind) -> bool:
        """Whether the operation is allowed on at least one resource of this kind."""
        return True

    def publish(self, _delta: MetadataDelta, _image: MetadataImage) -> None:
        """A metadata publisher: called for every change."""


ALLOWS_EVERYTHING: Final = Authorizer()

_Question = tuple[Principal, str, Operation, Resource]


class AclAuthorizer(Authorizer):
    """Enforces ACLs. Until metadata is loaded, it allows only super users."""

    enforces = True

    def __init__(self, super_users: frozenset[str], *, allows_without_entry: bool) -> None:
        self._super_users = super_users
        self._allows_without_entry = allows_without_entry
        self._index = AclIndex()
        self._is_loaded = False
        self._decisions: dict[_Question, bool] = {}
        self._characters = 0
        self._decisions_for_any: dict[tuple[Principal, str, Operation, ResourceKind], bool] = {}
        self._told: set[_Question] = set()

    def publish(self, delta: MetadataDelta, _image: MetadataImage) -> None:
        if self._is_loaded and not delta.acls_changed:
            return
        self._is_loaded = True
        before = delta.image.security.acls
        for acl_id, acl in delta.acls_changed.items():
            old = before.get(acl_id)
            if old is not None:
                self._index.remove(old)
            if acl is not None:
                self._index.add(acl)
        self._forget()
        self.generation += 1

    def _forget(self) -> None:
        self._decisions.clear()
        self._characters = 0
        self._decisions_for_any.clear()
        self._told.clear()

    def allows(self, asker: AclSubject, operation: Operation, resource: Resource) -> bool:
        question = (asker.principal, asker.host, operation, resource)
        known = self._decisions.get(question)
        if known is None:
            known = self._decide(question)
        if not known:
            self._tell(question)
        return known

    def would_allow(self, asker: AclSubject, operation: Operation, resource: Resource) -> bool:
        question = (asker.principal, asker.host, operation, resource)
        known = self._decisions.get(question)
        return self._decide(question) if known is None else known

    def _decide(self, question: _Question) -> bool:
        principal, host, operation, resource = question
        who = _who(principal, host)
        if who.principal in self._super_users:
            decision = True
        elif not self._is_loaded:
            return False
        else:
            found = self._index.decide(who, operation, resource.kind, resource.name)
            decision = self._allows_without_entry if found is None else found
        self._characters += len(resource.name)
        if len(self._decisions) >= MOST_REMEMBERED or self._characters > MOST_REMEMBERED_CHARACTERS:
            self._forget()
            self._characters = len(resource.name)
        self._decisions[question] = decision
        return decision

    def _tell(self, question: _Question) -> None:
        """Log each refusal once until ACLs change: rejected clients mostly retry."""
        if question in self._told:
            return
        self._told.add(question)
        principal, host, operation, resource = question
        who = _who(principal, host)
        # Without CLUSTER_ACTION a node cannot take part, which the administrator has to learn.
        level = logging.WARNING if operation is Operation.CLUSTER_ACTION else logging.INFO
        log.log(level, "%s from %s may not %s %s %s", *who, operation.name, resource.kind.name, resource.name)

    def allows_for_any(self, asker: AclSubject, operation: Operation, kind: ResourceKind) -> bool:
        if self.would_allow(asker, operation, Resource(kind, ANY_NAME)):
            return True
        if not self._is_loaded:
            return False
        question = (asker.principal, asker.host, operation, kind)
        known = self._decisions_for_any.get(question)
        if known is None:
            if len(self._decisions_for_any) >= MOST_REMEMBERED:
                self._decisions_for_any.clear()
            who = _who(asker.principal, asker.host)
            known = self._decisions_for_any[question] = self._index.decide_for_any(who, operation, kind)
        return known


def _who(principal: Principal, host: str) -> Who:
    return Who(f"{principal.kind}:{principal.name}", _as_java(host.removeprefix("/")))


def _as_java(address: str) -> str:
    """The address as in ACLs: Java does not shorten IPv6, and turns IPv4-mapped addresses into IPv4."""
    if ":" not in address:
        return address
    parsed = ipaddress.IPv6Address(address.partition("%")[0])
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return ":".join(f"{int(part, 16):x}" for part in parsed.exploded.split(":"))


def authorizer_of(config: BrokerConfig) -> Authorizer:
    if not config.has_authorizer:
        return ALLOWS_EVERYTHING
    return AclAuthorizer(config.super_users, allows_without_entry=config.allow_everyone_if_no_acl_found)


_SUPPORTED: Final = {
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
    ResourceKind.TRANSACTIONAL_ID: (Operation.DESCRIBE, Operation.WRITE, Operation.TWO_PHASE_COMMIT),
}


def authorized_operations(context: RequestContext, resource: Resource) -> int:
    """The bit field for `include…AuthorizedOperations`: bit n is operation n."""
    return sum(1 << op for op in _SUPPORTED[resource.kind] if context.may(op, resource))


def cluster_operations(context: RequestContext) -> int:
    """The cluster's authorized operations, for those who may describe it."""
    return authorized_operations(context, CLUSTER) if context.authorize(Operation.DESCRIBE, CLUSTER) else 0
