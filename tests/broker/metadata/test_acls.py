"""Decisions from ACLs, compared with an evaluation of all of them one by one; and how ACLs are stored."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker import turning

from ballast_broker.metadata.acls import (
    Acl,
    AclFilter,
    AclIndex,
    Operation,
    PatternType,
    Permission,
    ResourceKind,
    Who,
    covers,
)
from ballast_broker.metadata.delta import MetadataDelta
from ballast_broker.metadata.image import MetadataImage
from ballast_broker.metadata.loader import MetadataLoader
from ballast_broker.metadata.records import decode_record, encode_record, record
from ballast_broker.metadata.snapshot import acl_record, image_records

TOPIC, GROUP = ResourceKind.TOPIC, ResourceKind.GROUP
NAMES = ("a", "ab", "abc", "b", "*")
PRINCIPALS = ("User:ann", "User:bob", "User:*", "Group:ann")
HOSTS = ("10.0.0.1", "10.0.0.2", "*")
OPERATIONS = (*Operation,)[2:]
IMPLYING = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}

acls = st.builds(
    Acl,
    st.sampled_from((TOPIC, GROUP)),
    st.sampled_from(NAMES),
    st.sampled_from((PatternType.LITERAL, PatternType.PREFIXED)),
    st.sampled_from(PRINCIPALS),
    st.sampled_from(HOSTS),
    st.sampled_from(OPERATIONS),
    st.sampled_from((Permission.ALLOW, Permission.DENY)),
)
people = st.builds(Who, st.sampled_from(("User:ann", "User:bob", "User:eve", "Group:ann")), st.sampled_from(HOSTS[:2]))
asked_names = st.sampled_from(("a", "ab", "abc", "abcd", "b", "c", "*", "*x"))
asked_operations = st.sampled_from((*Operation,)[3:])


def applies(acl: Acl, who: Who, operation: Operation) -> bool:
    """Whether an ACL applies, by Kafka's documentation."""
    if acl.principal not in (who.principal, "User:*") or acl.host not in (who.host, "*"):
        return False
    if acl.operation in (Operation.ALL, operation):
        return True
    return acl.permission == Permission.ALLOW and acl.operation in IMPLYING.get(operation, ())


def one_by_one(entries: Iterable[Acl], who: Who, operation: Operation, kind: int, name: str) -> bool | None:
    of_resource = [each for each in entries if each.kind == kind and covers(each, name)]
    if not of_resource:
        return None
    applying = {each.permission for each in of_resource if applies(each, who, operation)}
    return applying == {Permission.ALLOW}


@pytest.mark.spec("CLI-06")
@settings(max_examples=150, deadline=None)
@given(st.lists(acls, max_size=25), st.lists(st.integers(0, 24), max_size=15), people, asked_operations, asked_names)
def test_a_decision_is_that_of_all_entries(
    entries: list[Acl], removed: list[int], who: Who, operation: Operation, name: str
) -> None:
    """Also after some of them have been removed, and with duplicates."""
    index, left = AclIndex(), dict(enumerate(entries))
    for each in entries:
        index.add(each)
    for number in removed:
        if number in left:
            index.remove(left.pop(number))
    for kind in (TOPIC, GROUP):
        assert index.decide(who, operation, kind, name) == one_by_one(left.values(), who, operation, kind, name)


def some_resource_is_allowed(entries: list[Acl], who: Who, operation: Operation) -> bool:
    """Try names that no entry mentions, and those that one does."""
    exact = [each._replace(operation=Operation.ALL) for each in entries if each.operation in (Operation.ALL, operation)]
    return any(one_by_one(exact, who, operation, TOPIC, name) for name in (*NAMES[:-1], "abcz", "az", "abz", "bz", "z"))


@pytest.mark.spec("CLI-06")
@settings(max_examples=100, deadline=None)
@given(st.lists(acls.filter(lambda each: each.name != "*"), max_size=12), people)
def test_something_of_a_kind_is_allowed_where_there_is_a_name_for_it(entries: list[Acl], who: Who) -> None:
    index = AclIndex()
    for each in dict.fromkeys(entries):
        index.add(each)
    of_topics = [each for each in entries if each.kind == TOPIC]
    expected = some_resource_is_allowed(of_topics, who, Operation.WRITE)
    assert index.decide_for_any(who, Operation.WRITE, TOPIC) == expected


def test_a_wildcard_decides_for_any_resource() -> None:
    ann = Who("User:ann", "10.0.0.1")
    index = AclIndex()
    everything = Acl(TOPIC, "*", PatternType.LITERAL, "User:ann", "*", Operation.WRITE, Permission.ALLOW)
    index.add(everything)
    assert index.decide_for_any(ann, Operation.WRITE, TOPIC)
    index.add(everything._replace(permission=Permission.DENY))
    index.add(everything._replace(name="a"))
    assert not index.decide_for_any(ann, Operation.WRITE, TOPIC)


@pytest.mark.spec("CLI-06")
def test_a_decision_among_ten_thousand_entries_costs_little() -> None:
    index, ann = AclIndex(), Who("User:ann", "10.0.0.1")

    def cost() -> float:
        began = time.process_time()
        for number in range(100):
            index.decide(ann, Operation.READ, TOPIC, f"orders-{number % 30}")
        return time.process_time() - began

    few = Acl(TOPIC, "orders-1", PatternType.LITERAL, "User:ann", "*", Operation.READ, Permission.ALLOW)
    index.add(few)
    index.add(few._replace(name="orders", pattern=PatternType.PREFIXED))
    alone = min(cost() for _ in range(5))
    for number in range(3_500):
        index.add(few._replace(principal=f"User:{number}"))
        index.add(few._replace(name=f"t{number:05}", pattern=PatternType.PREFIXED))
        index.add(few._replace(name=f"orders-{number}", host="10.0.0.2"))
    assert min(cost() for _ in range(5)) < 10 * alone


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, {"literal", "prefixed", "wildcard", "group"}),
        ({"name": "pay"}, {"literal", "prefixed"}),
        ({"name": "pay", "pattern": PatternType.PREFIXED}, {"prefixed"}),
        ({"name": "payments", "pattern": PatternType.MATCH}, {"prefixed", "wildcard"}),
        ({"name": "pay", "pattern": PatternType.MATCH}, {"literal", "prefixed", "wildcard"}),
        ({"principal": "User:bob"}, {"group"}),
        ({"host": "10.0.0.1"}, {"wildcard"}),
        ({"operation": Operation.WRITE}, {"prefixed"}),
        ({"permission": Permission.DENY}, {"literal"}),
        ({"kind": 99}, set()),
    ],
)
def test_a_filter_means_what_it_names(asked: dict[str, Any], found: set[str]) -> None:
    kept = {
        "literal": Acl(TOPIC, "pay", PatternType.LITERAL, "User:ann", "*", Operation.READ, Permission.DENY),
        "prefixed": Acl(TOPIC, "pay", PatternType.PREFIXED, "User:ann", "*", Operation.WRITE, Permission.ALLOW),
        "wildcard": Acl(TOPIC, "*", PatternType.LITERAL, "User:ann", "10.0.0.1", Operation.READ, Permission.ALLOW),
        "group": Acl(GROUP, "g", PatternType.LITERAL, "User:bob", "*", Operation.READ, Permission.ALLOW),
    }
    anything = AclFilter(ResourceKind.ANY, None, PatternType.ANY, None, None, Operation.ANY, Permission.ANY)
    wanted = anything._replace(**asked)
    assert {name for name, acl in kept.items() if wanted.matches(acl)} == found
    only = wanted.exact_acl
    assert only is None or {name for name, acl in kept.items() if acl == only} == found


@given(acls)
def test_a_filter_that_can_mean_one_entry_means_that_one(acl: Acl) -> None:
    assert AclFilter(*acl).exact_acl == acl
    assert AclFilter(*acl).matches(acl)


READ_ORDERS = Acl(TOPIC, "orders", PatternType.LITERAL, "User:ann", "*", Operation.READ, Permission.ALLOW)


def with_entries(loader: MetadataLoader, offset: int, *records: Any) -> MetadataImage:
    turning.at_one_go(loader.apply([decode_record(encode_record(each)) for each in records], offset, 1))
    return loader.image


@pytest.mark.spec("CLU-03")
def test_entries_come_and_go_with_their_records_and_stand_in_snapshots() -> None:
    loader, one, two = MetadataLoader(), uuid.UUID(int=1001), uuid.UUID(int=1002)
    write = READ_ORDERS._replace(operation=Operation.WRITE)
    image = with_entries(loader, 0, acl_record(one, READ_ORDERS), acl_record(two, write))
    assert dict(image.security.acl_ids) == {READ_ORDERS: one, write: two}
    again = MetadataLoader()
    turning.at_one_go(again.load_snapshot([decode_record(encode_record(each)) for each in image_records(image)], 0, 1))
    assert dict(again.image.security.acls) == dict(image.security.acls) == {one: READ_ORDERS, two: write}
    image = with_entries(loader, 1, record("RemoveAccessControlEntryRecord", id=one))
    assert dict(image.security.acl_ids) == {write: two}
    # The same entry again, in the batch that removes its old record.
    image = with_entries(loader, 2, acl_record(one, write), record("RemoveAccessControlEntryRecord", id=two))
    assert (dict(image.security.acls), dict(image.security.acl_ids)) == ({one: write}, {write: one})


@pytest.mark.spec("CLI-06")
def test_a_snapshot_over_an_older_image_tells_which_entries_went() -> None:
    """Otherwise a right that was revoked while this node was down would remain valid here for ever."""
    loader, one = MetadataLoader(), uuid.UUID(int=1001)
    with_entries(loader, 0, acl_record(one, READ_ORDERS))
    changes: list[MetadataDelta] = []
    loader.publishers.append(lambda delta, image: changes.append(delta))
    turning.at_one_go(loader.load_snapshot([], 5, 1))
    assert changes[0].acls_changed == {one: None}
