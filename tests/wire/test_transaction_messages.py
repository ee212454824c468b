"""Messages between brokers about transactions, beside the bytes that Apache Kafka 4.1 makes of the same."""

from __future__ import annotations

from typing import Any

import pytest
from tests.contract.compare import build, plain

from ballast_wire.messages import message

MARKER = {
    "producer_id": 258, "producer_epoch": 3, "transaction_result": True, "coordinator_epoch": 5,
    "topics": [{"name": "t", "partition_indexes": [0, 7]}],
}  # fmt: skip
WRITTEN = {"producer_id": 258, "topics": [{"name": "t", "partitions": [{"partition_index": 7, "error_code": 52}]}]}
ASKED = {
    "transactional_id": "tx", "producer_id": 258, "producer_epoch": 3, "verify_only": True,
    "topics": [{"name": "t", "partitions": [0, 7]}],
}  # fmt: skip
REFUSED = {
    "transactional_id": "tx",
    "topic_results": [
        {"name": "t", "results_by_partition": [{"partition_index": 7, "partition_error_code": 48}]}
    ],
}  # fmt: skip


@pytest.mark.spec("CLI-10")
@pytest.mark.parametrize(
    ("name", "version", "values", "kafkas"),
    [
        ("WriteTxnMarkersRequest", 1, {"markers": [MARKER]},
         "02000000000000010200030102027403000000000000000700000000050000"),
        ("WriteTxnMarkersResponse", 1, {"markers": [WRITTEN]},
         "0200000000000001020202740200000007003400000000"),
        ("AddPartitionsToTxnRequest", 5, {"transactions": [ASKED]},
         "020374780000000000000102000301020274030000000000000007000000"),
        ("AddPartitionsToTxnResponse", 5, {"results_by_transaction": [REFUSED]},
         "000000000000020374780202740200000007003000000000"),
    ],
)  # fmt: skip
def test_the_bytes_are_kafkas(name: str, version: int, values: dict[str, Any], kafkas: str) -> None:
    kind = message(name)
    made = build(kind, values, version)
    assert bytes(made.encode(version=version)).hex() == kafkas
    assert plain(kind.decode(bytes.fromhex(kafkas), version=version), version) == plain(made, version)
