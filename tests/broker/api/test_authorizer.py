"""Authorization: ACLs from the metadata, super users, and cached decisions."""

from __future__ import annotations

import logging
import uuid
from types import SimpleNamespace
from typing import Any

import pytest
from tests.broker import turning

from ballast_broker.api.authorizer import (
    ALLOWS_EVERYTHING,
    CLUSTER,
    MOST_REMEMBERED_CHARACTERS,
    AclAuthorizer,
    Operation,
    ResourceKind,
    authorizer_of,
    group,
    topic,
)
from ballast_broker.config.broker import broker_config
from ballast_broker.metadata.acls import Acl, PatternType, Permission
from ballast_broker.metadata.loader import MetadataLoader
from ballast_broker.metadata.records import record
from ballast_broker.metadata.snapshot import acl_record
from ballast_broker.net_reply import Principal

pytestmark = pytest.mark.spec("CLI-06")
STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
ANN = SimpleNamespace(principal=Principal("User", "ann"), host="/10.0.0.1")
ROOT = SimpleNamespace(principal=Principal("User", "root"), host="/10.0.0.1")
READ_ORDERS = Acl(ResourceKind.TOPIC, "orders", PatternType.LITERAL, "User:ann", "*", Operation.READ, Permission.ALLOW)
ONE = uuid.UUID(int=1001)


class Given:
    """An authorizer as a node has it, with ACLs as the metadata log brings them."""

    def __init__(self, **more: str) -> None:
        properties = {"node.id": "1", "authorizer.class.name": STANDARD, "super.users": "User:root;User:boss"}
        self.authorizer = authorizer_of(broker_config(properties | {k.replace("_", "."): v for k, v in more.items()}))
        self.loader = MetadataLoader([self.authorizer.publish])
        self._offset = 0

    def apply(self, *records: Any) -> None:
        turning.at_one_go(self.loader.apply(records, self._offset, 1))
        self._offset += 1

    def add(self, *acls: Acl) -> None:
        self.apply(*(acl_record(uuid.UUID(int=1001 + len(self.loader.image.security.acls) + n), a)
                     for n, a in enumerate(acls)))  # fmt: skip

    def may(self, asker: Any, operation: Operation, name: str = "orders") -> bool:
        return self.authorizer.allows(asker, operation, topic(name))


def test_without_a_class_everybody_may_do_everything() -> None:
    authorizer = authorizer_of(broker_config({"node.id": "1"}))
    assert authorizer is ALLOWS_EVERYTHING
    assert authorizer.allows(ANN, Operation.ALTER, CLUSTER)
    assert authorizer.allows_for_any(ANN, Operation.WRITE, ResourceKind.TOPIC)


def test_a_right_counts_from_the_change_that_gives_it_to_the_one_that_takes_it() -> None:
    given = Given()
    given.apply()
    assert not given.may(ANN, Operation.READ)
    given.add(READ_ORDERS)
    assert given.may(ANN, Operation.READ)
    assert given.may(ANN, Operation.DESCRIBE)
    assert not given.may(ANN, Operation.WRITE)
    given.apply(record("RemoveAccessControlEntryRecord", id=ONE))
    assert not given.may(ANN, Operation.READ)


def test_before_the_metadata_is_known_super_users_alone_may_do_anything() -> None:
    given = Given(allow_everyone_if_no_acl_found="true")
    assert not given.may(ANN, Operation.READ)
    assert not given.authorizer.allows_for_any(ANN, Operation.WRITE, ResourceKind.TOPIC)
    assert given.may(ROOT, Operation.READ)
    given.apply()
    assert given.may(ANN, Operation.READ)


def test_a_super_user_may_do_what_entries_refuse_him() -> None:
    given = Given()
    given.add(READ_ORDERS._replace(principal="User:*", operation=Operation.ALL, permission=Permission.DENY))
    assert given.may(ROOT, Operation.DELETE)
    assert given.authorizer.allows_for_any(ROOT, Operation.WRITE, ResourceKind.TOPIC)


def test_everybody_is_allowed_only_what_no_entry_is_about() -> None:
    given = Given(allow_everyone_if_no_acl_found="true")
    given.add(READ_ORDERS._replace(principal="User:somebody"))
    assert not given.may(ANN, Operation.READ)
    assert given.may(ANN, Operation.READ, "payments")
    assert given.authorizer.allows(ANN, Operation.READ, group("orders"))


def test_a_decision_is_made_once_until_an_entry_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    given = Given()
    given.add(READ_ORDERS)
    assert isinstance(given.authorizer, AclAuthorizer)
    made: list[Any] = []
    decide = given.authorizer._index.decide

    def counted(*asked: Any) -> Any:
        made.append(asked)
        return decide(*asked)

    monkeypatch.setattr(given.authorizer._index, "decide", counted)
    for _ in range(3):
        given.may(ANN, Operation.READ)
        given.apply()  # something else changed
    assert len(made) == 1
    given.add(READ_ORDERS._replace(name="payments"))
    given.may(ANN, Operation.READ)
    assert len(made) == 2


@pytest.mark.parametrize(
    ("host", "written"),
    [
        ("/10.0.0.1", "10.0.0.1"),
        ("/::1", "0:0:0:0:0:0:0:1"),
        ("/2001:db8::8a2e:370:7334", "2001:db8:0:0:0:8a2e:370:7334"),
        ("/::ffff:10.0.0.1", "10.0.0.1"),
        ("/fe80::1%eth0", "fe80:0:0:0:0:0:0:1"),
    ],
)
def test_entries_name_hosts_as_java_writes_them(host: str, written: str) -> None:
    given = Given()
    given.add(READ_ORDERS._replace(host=written))
    assert given.may(SimpleNamespace(principal=ANN.principal, host=host), Operation.READ)
    assert not given.may(SimpleNamespace(principal=ANN.principal, host="/10.9.9.9"), Operation.READ)


def test_who_is_refused_is_told_of_in_the_log_once(caplog: pytest.LogCaptureFixture) -> None:
    given = Given()
    given.add(READ_ORDERS)
    with caplog.at_level(logging.INFO, "ballast_broker.api.authorizer"):
        given.authorizer.would_allow(ANN, Operation.WRITE, topic("orders"))  # to leave it out of an answer
        assert caplog.messages == []
        for _ in range(3):
            given.may(ANN, Operation.WRITE)
            given.may(ANN, Operation.READ)
    assert caplog.messages == ["User:ann from 10.0.0.1 may not WRITE TOPIC orders"]


def test_a_node_that_may_not_act_for_the_cluster_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    assert not Given().authorizer.allows(ANN, Operation.CLUSTER_ACTION, CLUSTER)
    assert caplog.messages == ["User:ann from 10.0.0.1 may not CLUSTER_ACTION CLUSTER kafka-cluster"]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ballast_broker.api.authorizer.MOST_REMEMBERED", 10)
    given = Given()
    given.add(READ_ORDERS)
    for number in range(100):
        given.may(ANN, Operation.READ, f"t{number}")
    assert isinstance(given.authorizer, AclAuthorizer)
    assert len(given.authorizer._decisions) <= 10
    assert len(given.authorizer._told) <= 11
    assert given.may(ANN, Operation.READ)


@pytest.mark.spec("CLI-08")
def test_long_names_are_remembered_as_far_as_there_is_room_for_them() -> None:
    given = Given()
    given.add(READ_ORDERS)
    assert isinstance(given.authorizer, AclAuthorizer)
    for number in range(1000):
        given.authorizer.would_allow(ANN, Operation.READ, topic(f"{number:030000}"))
        assert sum(len(name) for _, _, _, (_, name) in given.authorizer._decisions) <= MOST_REMEMBERED_CHARACTERS
    assert given.may(ANN, Operation.READ)
