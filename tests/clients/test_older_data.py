"""Data directories that older releases wrote, and were killed over, are whole for this one.

The folders were written by the sources of the day that they are named after: topics in two directories, a compacted
one among them, groups, and on the later day users, rights, settings, a snapshot of the metadata and an open
transaction.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)
from tests.clients.running import RunningBroker

pytestmark = [pytest.mark.timeout(120), pytest.mark.spec("CLU-03")]

FOLDERS = Path(__file__).parent / "older_data"
COMMITTED = [("data", 0, 50), ("data", 1, 50)]
AFTER_LAST_OF_TABLE = {f"k{number}": "3" * 20 for number in range(20)}


@contextmanager
def running(day: str, folder: Path) -> Iterator[str]:
    with tarfile.open(FOLDERS / f"{day}.tar.gz") as stored:
        stored.extractall(folder, filter="data")
    broker = RunningBroker(
        folder,
        authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        super_users="User:ANONYMOUS",
        offsets_topic_num_partitions=1,
        transaction_state_log_num_partitions=1,
    )
    try:
        yield broker.start().bootstrap
    finally:
        broker.kill()
    assert "Traceback" not in broker.log_text(), broker.log_text()


def records(bootstrap: str, topic: str, partitions: int = 1) -> list[tuple[str, str]]:
    """Keys and values of what is committed, one partition after the other."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True}
    consumer = Consumer(settings | {"isolation.level": "read_committed"})
    found = []
    try:
        for partition in range(partitions):
            consumer.assign([TopicPartition(topic, partition, 0)])
            while (message := consumer.poll(20)) is not None and not message.error():
                found.append(((message.key() or b"").decode(), (message.value() or b"").decode()))
            assert message is not None, f"nothing more is said of {topic}-{partition}"
            error = message.error()
            assert error is not None
            assert error.code() == KafkaError._PARTITION_EOF, error
        return found
    finally:
        consumer.close()


def committed(admin: AdminClient, group: str) -> list[tuple[str, int, int]]:
    [future] = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    return sorted((each.topic, each.partition, each.offset) for each in future.result(20).topic_partitions)


def setting(admin: AdminClient, kind: Any, name: str, key: str) -> str:
    [future] = admin.describe_configs([ConfigResource(kind, name)]).values()
    return str(future.result(20)[key].value)


@pytest.mark.parametrize("day", ["2026-11-22", "2026-11-25"])
def test_what_was_written_is_there_and_goes_on(day: str, tmp_path: Path) -> None:
    with running(day, tmp_path) as bootstrap:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        assert sorted(value for _, value in records(bootstrap, "data", 2)) == sorted(map(str, range(100)))
        assert dict(records(bootstrap, "table")) == AFTER_LAST_OF_TABLE
        assert committed(admin, "classic") == COMMITTED
        assert setting(admin, ConfigResource.Type.TOPIC, "data", "retention.ms") == "-1"
        assert setting(admin, ConfigResource.Type.BROKER, "1", "log.retention.ms") == "123456789"
        producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        producer.produce("data", value=b"100", partition=0)
        assert producer.flush(20) == 0
        assert [value for _, value in records(bootstrap, "data")][-1] == "100"


def test_groups_rights_users_and_transactions_are_there(tmp_path: Path) -> None:
    with running("2026-11-25", tmp_path) as bootstrap:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        assert committed(admin, "consumer") == COMMITTED
        users = admin.describe_user_scram_credentials(["ann"])
        assert isinstance(users, dict)
        [user] = users.values()
        assert [each.iterations for each in user.result(20).scram_credential_infos] == [4096]
        of_bob = AclBindingFilter(
            ResourceType.TOPIC,
            "data",
            ResourcePatternType.ANY,
            "User:bob",
            "*",
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        assert [each.operation for each in admin.describe_acls(of_bob).result(20)] == [AclOperation.READ]
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "t1"})
        producer.init_transactions(20)  # which ends the one that was open
        producer.begin_transaction()
        producer.produce("tx", value=b"4")
        producer.commit_transaction(20)
        assert committed(admin, "of-transactions") == [("data", 0, 3)]
        assert [value for _, value in records(bootstrap, "tx")] == ["0", "2", "4"]
