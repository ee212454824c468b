"""Records of the transaction log: the bytes that Apache Kafka 4.1's own classes make, and what they are read as."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_broker.coordinator.transaction_records import key_of, standing_of, transactional_id_of, value_of
from ballast_broker.coordinator.transactions import STORED_STATES, TransactionMetadata, TransactionState
from ballast_wire.messages import message
from ballast_wire.names import TopicPartition

pytestmark = pytest.mark.spec("CLI-05")

S = TransactionState
KEY = "0000000574782dc3a9"
ONGOING = TransactionMetadata(
    producer_id=4711,
    previous_id=4711,  # as after every change; the same as the present one, it is not said
    epoch=7,
    timeout_ms=60_000,
    state=S.ONGOING,
    partitions=frozenset({TopicPartition("orders", 0), TopicPartition("orders", 2), TopicPartition("paid", 1)}),
    started_ms=1_700_000_000_000,
    updated_ms=1_700_000_000_123,
    version=2,
)
EMPTY = TransactionMetadata(4711, 8, 60_000, S.EMPTY, updated_ms=1_700_000_000_123, previous_id=4711)
NEW_ID = TransactionMetadata(
    4711, 32_767, 60_000, S.PREPARE_COMMIT, frozenset(), 1_700_000_000_000, 1_700_000_000_123, 2, 4000, 5000
)  # fmt: skip
VALUES = [
    (
        ONGOING,
        0,
        "0000000000000000126700070000ea60010000000200066f726465727300000002000000000000000200047061696400000001"
        "000000010000018bcfe5687b0000018bcfe56800",
    ),
    (
        ONGOING,
        1,
        "0001000000000000126700070000ea600103076f7264657273030000000000000002000570616964020000000100"
        "0000018bcfe5687b0000018bcfe568000102020002",
    ),
    (EMPTY, 0, "0000000000000000126700080000ea6000ffffffff0000018bcfe5687bffffffffffffffff"),
    (EMPTY, 2, "0001000000000000126700080000ea6000000000018bcfe5687bffffffffffffffff00"),
    (
        NEW_ID,
        2,
        "000100000000000012677fff0000ea6002010000018bcfe5687b0000018bcfe56800"
        "0300080000000000000fa00108000000000000138802020002",
    ),
]


def test_a_key() -> None:
    assert key_of("tx-é").hex() == KEY
    assert transactional_id_of(bytes.fromhex(KEY)) == "tx-é"
    assert transactional_id_of(bytes.fromhex("0001" + KEY[4:])) is None


def test_an_end_that_bumped_the_epoch_is_whole_though_the_level_was_lowered_meanwhile() -> None:
    """Else the next coordinator takes its marker for one that may end the next transaction, and its producer for
    another."""
    for end in (NEW_ID, replace(NEW_ID, state=S.COMPLETE_COMMIT, epoch=0, next_id=-1)):
        assert standing_of(value_of(end, 0)) == end
        older = replace(end, version=0)
        assert standing_of(value_of(older, 0)).next_id == -1


@pytest.mark.parametrize(("standing", "cluster_version", "value"), VALUES)
def test_a_value(standing: TransactionMetadata, cluster_version: int, value: str) -> None:
    assert value_of(standing, cluster_version).hex() == value
    found = standing_of(bytes.fromhex(value))
    assert (found.producer, found.timeout_ms, found.state) == (standing.producer, standing.timeout_ms, standing.state)
    assert (found.partitions, found.started_ms) == (standing.partitions, standing.started_ms)
    assert found.updated_ms == standing.updated_ms
    if cluster_version:
        assert (found.version, found.next_id) == (standing.version, standing.next_id)


ids = st.integers(-1, 2**63 - 1)
epochs = st.integers(-1, 2**15 - 1)
topics = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
standings = st.builds(
    TransactionMetadata,
    producer_id=ids,
    epoch=epochs,
    timeout_ms=st.integers(0, 2**31 - 1),
    state=st.sampled_from(STORED_STATES),
    partitions=st.frozensets(st.builds(TopicPartition, topics, st.integers(0, 2**31 - 1)), max_size=5),
    started_ms=ids,
    updated_ms=ids,
    version=st.integers(0, 2),
    previous_id=ids,
    next_id=ids,
)


@given(standings, st.integers(0, 2))
def test_what_is_written_by_hand_is_what_kafkas_schema_says(
    standing: TransactionMetadata, cluster_version: int
) -> None:
    kind = message("TransactionLogValue")
    of_topic: dict[str, list[int]] = {}
    for topic, number in sorted(standing.partitions):
        of_topic.setdefault(topic, []).append(number)
    found = [kind.PartitionsSchema(topic=topic, partition_ids=numbers) for topic, numbers in of_topic.items()]
    schema = kind(
        producer_id=standing.producer_id,
        previous_producer_id=-1 if standing.previous_id == standing.producer_id else standing.previous_id,
        next_producer_id=standing.next_id,
        producer_epoch=standing.epoch,
        transaction_timeout_ms=standing.timeout_ms,
        transaction_status=STORED_STATES.index(standing.state),
        transaction_partitions=None if standing.state is S.EMPTY else found,
        transaction_last_update_timestamp_ms=standing.updated_ms,
        transaction_start_timestamp_ms=standing.started_ms,
        client_transaction_version=standing.version,
    )
    bumped = standing.version == 2 and standing.state not in (S.EMPTY, S.ONGOING)
    assert value_of(standing, cluster_version) == bytes(schema.encode(1 if bumped else min(cluster_version, 1)))


@pytest.mark.parametrize("status", ["06", "07", "ff"])
def test_a_state_that_is_never_stored_is_none(status: str) -> None:
    with pytest.raises(ValueError, match="state"):
        standing_of(bytes.fromhex(VALUES[0][2].replace("60010000", f"60{status}0000", 1)))
