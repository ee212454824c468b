"""Apache Kafka's own tool reads our metadata log and our snapshots."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest
from tests.apache_java import java
from tests.broker.controller.cluster import Cluster

from ballast_broker.metadata.acls import Acl
from ballast_broker.metadata.batches import data_batch
from ballast_broker.metadata.delegation_tokens import DelegationToken
from ballast_broker.metadata.records import record
from ballast_broker.metadata.snapshot import acl_record

pytestmark = pytest.mark.java


def dump(path: Path) -> list[dict[str, Any]]:
    """What DumpLogSegments prints: one entry per record, control records by their name."""
    command = java("kafka.tools.DumpLogSegments", "--cluster-metadata-decoder", "--files", path)
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=True)
    assert "isvalid: false" not in done.stdout
    records = []
    for line in done.stdout.splitlines():
        if found := re.search(r" payload: (\{.*\})$", line):
            records.append(json.loads(found[1]))
        elif found := re.search(r"\] (\w+)[: ]+(\{.*\})$", line):
            records.append({"type": found[1], "data": json.loads(found[2])})
    return records


@pytest.mark.spec("CLU-03")
@pytest.mark.timeout(120)
def test_the_metadata_log_and_a_snapshot_of_it(tmp_path: Path) -> None:
    async def scenario() -> tuple[bytes, dict[str, bytes]]:
        async with Cluster(voters=1, observers=1) as cluster:
            await cluster.create_topic("orders", [1, 2], [2, 1], retention_ms="1000")
            await cluster.nodes[2].leave()
            node = cluster.nodes[1]
            await node.replica.snapshot()
            return b"".join(node.log.batches), node.disk.files

    log, files = asyncio.run(scenario())
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(log)
    records = dump(path)
    kinds = [each["type"] for each in records]
    assert kinds[0] == "LeaderChange"
    assert records[0]["data"] == {
        "version": 0,
        "leaderId": 1,
        "voters": [{"voterId": 1}],
        "grantingVoters": [{"voterId": 1}],
    }
    for kind in ("FEATURE_LEVEL", "REGISTER_BROKER", "BROKER_REGISTRATION_CHANGE", "TOPIC", "CONFIG", "PARTITION"):
        assert f"{kind}_RECORD" in kinds
    partition = next(each for each in records if each["type"] == "PARTITION_RECORD")
    assert (partition["version"], partition["data"]["replicas"], partition["data"]["leader"]) == (2, [1, 2], 1)
    change = next(each for each in records if each["type"] == "PARTITION_CHANGE_RECORD")
    assert change["data"]["isr"] == [1]

    name = next(each for each in files if each.endswith(".checkpoint"))
    snapshot = tmp_path / name.rsplit("/", 1)[1]
    snapshot.write_bytes(files[name])
    contents = dump(snapshot)
    assert contents[0]["type"] == "SnapshotHeader"
    assert contents[-1]["type"] == "SnapshotFooter"
    partitions = [each["data"] for each in contents if each["type"] == "PARTITION_RECORD"]
    assert [(each["partitionId"], each["isr"]) for each in partitions] == [(0, [1]), (1, [1])]


@pytest.mark.spec("CLI-06")
@pytest.mark.timeout(120)
def test_access_control_entries(tmp_path: Path) -> None:
    entry = Acl(5, "transfers", 4, "User:ann", "10.0.0.1", 15, 2)
    entry_id = uuid.UUID(int=1001)
    path = tmp_path / "00000000000000000000.log"
    records = [acl_record(entry_id, entry), record("RemoveAccessControlEntryRecord", id=entry_id)]
    path.write_bytes(data_batch(records, 1_700_000_000_000, epoch=1))
    created, removed = dump(path)
    assert created["type"] == "ACCESS_CONTROL_ENTRY_RECORD"
    assert list(created["data"].values())[1:] == list(entry)
    assert (removed["type"], removed["data"]["id"]) == ("REMOVE_ACCESS_CONTROL_ENTRY_RECORD", created["data"]["id"])


@pytest.mark.spec("CLI-13")
@pytest.mark.timeout(120)
def test_delegation_tokens(tmp_path: Path) -> None:
    token = DelegationToken("n8NK4bc1Qze724ECwi2_aQ", "User:ann", "User:bob", ("User:carol",), 1000, 3000, 2000)
    path = tmp_path / "00000000000000000000.log"
    records = [token.record(), record("RemoveDelegationTokenRecord", token_id=token.id)]
    path.write_bytes(data_batch(records, 1_700_000_000_000, epoch=1))
    created, removed = dump(path)
    assert (created["type"], created["data"]) == (
        "DELEGATION_TOKEN_RECORD",
        {
            "owner": "User:ann",
            "requester": "User:bob",
            "renewers": ["User:carol"],
            "issueTimestamp": 1000,
            "maxTimestamp": 3000,
            "expirationTimestamp": 2000,
            "tokenId": token.id,
        },
    )
    assert (removed["type"], removed["data"]) == ("REMOVE_DELEGATION_TOKEN_RECORD", {"tokenId": token.id})
