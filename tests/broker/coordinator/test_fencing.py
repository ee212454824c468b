"""A fenced producer stays fenced, whichever flow it and its successor use (CLI-05)."""

from __future__ import annotations

import pytest

from ballast_broker.coordinator.transactions import (
    FENCED,
    Answered,
    ProducerIdentity,
    Transaction,
    Write,
    add_partitions,
    completed,
    created,
    end,
    initialize,
)
from ballast_wire.names import TopicPartition

PARTITIONS = [TopicPartition("orders", 0)]
CLIENT_ADDS, BROKER_ADDS = 0, 2  # transaction.version as clients know it


def begin(transaction: Transaction) -> ProducerIdentity:
    _write(transaction, initialize(transaction, 1000, None, None, BROKER_ADDS, 0))
    return transaction.now.producer


def transact(transaction: Transaction, producer: ProducerIdentity, version: int, *, commit: bool) -> None:
    _write(transaction, add_partitions(transaction, producer, PARTITIONS, version, 0))
    _write(transaction, end(transaction, producer, commit, None, version, 0))
    transaction.now = completed(transaction.now, 0)


def _write(transaction: Transaction, decision: object) -> None:
    assert isinstance(decision, Write)
    transaction.now = decision.standing


@pytest.mark.spec("CLI-05")
@pytest.mark.parametrize("commit", [True, False])
def test_an_end_is_no_repetition_of_that_of_the_producer_after_it(commit: bool) -> None:
    """Its epoch is one less than the other's, as if it had missed the bump; but its own end bumped nothing."""
    transaction = created("x", 1000, 1000, 0)
    before = begin(transaction)
    after = begin(transaction)
    transact(transaction, after, CLIENT_ADDS, commit=commit)
    assert end(transaction, before, commit, None, BROKER_ADDS, 0) == FENCED
    assert transaction.now.producer == after


@pytest.mark.spec("CLI-05")
@pytest.mark.parametrize("commit", [True, False])
def test_an_end_that_was_not_heard_of_is_repeated(commit: bool) -> None:
    transaction = created("x", 1000, 1000, 0)
    producer = begin(transaction)
    transact(transaction, producer, BROKER_ADDS, commit=commit)
    told = ProducerIdentity(producer.producer_id, producer.epoch + 1)
    assert end(transaction, producer, commit, None, BROKER_ADDS, 0) == Answered(told)
