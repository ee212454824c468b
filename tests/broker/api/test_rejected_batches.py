"""After a batch of an idempotent producer was refused for a temporary reason, later ones must wait for its retry."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.broker.api.producing import Producing, answer
from tests.broker.replication.cluster import Cluster

from ballast_broker.api.rejected_batches import MOST, REMEMBERED_S, RejectedBatches
from ballast_broker.real_world import RealClock
from ballast_broker.storage.producers import MAXIMUM_SEQUENCE, ProducerStates
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.names import TopicPartition
from ballast_wire.records import Record, encode_batch

PRODUCER = 7


def batch(sequence: int, *, producer_id: int = PRODUCER, epoch: int = 0) -> memoryview:
    return memoryview(
        encode_batch(
            [Record(value=b"", timestamp=RealClock().wall_ms())],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
    )


class Checked:
    """RejectedBatches with a clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.producers = ProducerStates()
        self.log: Any = SimpleNamespace(producers=self.producers)
        self.refusals = RejectedBatches(lambda: self.now_s)

    def note(self, sequence: int, code: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER, partition: str = "t") -> None:
        self.refusals.note(partition, batch(sequence), code, self.log)

    def refuses(self, sent: memoryview, partition: str = "t") -> ErrorCode | None:
        try:
            self.refusals.check(partition, sent, self.log)
        except ApiError as error:
            return error.code
        return None


@pytest.mark.spec("CLI-05")
def test_what_is_ahead_is_refused_with_the_same_code_until_the_refused_one_comes() -> None:
    checked = Checked()
    checked.note(5, ErrorCode.NOT_ENOUGH_REPLICAS)
    assert checked.refuses(batch(6)) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert checked.refuses(batch(4)) is None  # an earlier one
    assert checked.refuses(batch(6)) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert checked.refuses(batch(5)) is None
    assert checked.refuses(batch(6)) is None


@pytest.mark.spec("CLI-05")
def test_the_first_of_several_is_waited_for() -> None:
    checked = Checked()
    checked.note(5)
    checked.note(6)  # behind it, and refused as well
    assert checked.refuses(batch(6)) is not None
    assert checked.refuses(batch(5)) is None
    checked.note(9)
    checked.note(8)  # sent again, in order
    assert checked.refuses(batch(9)) is not None
    assert checked.refuses(batch(8)) is None


@pytest.mark.spec("CLI-05")
def test_what_came_by_way_of_another_leader_is_waited_for_no_longer() -> None:
    checked = Checked()
    checked.note(5)
    checked.producers.record(PRODUCER, 0, 4, 0, 40, 1)
    assert checked.refuses(batch(6)) is not None
    checked.producers.record(PRODUCER, 0, 5, 0, 41, 1)
    assert checked.refuses(batch(6)) is None
    assert not checked.refusals.refused
    checked.note(5)
    checked.note(7)  # 5 is there
    assert checked.refuses(batch(8)) is not None
    checked.log = None
    assert checked.refuses(batch(8)) is not None


@pytest.mark.spec("CLI-05")
def test_others_are_not_held_up() -> None:
    checked = Checked()
    checked.note(5)
    assert checked.refuses(batch(6, producer_id=8)) is None
    assert checked.refuses(batch(6), partition="u") is None
    assert (
        checked.refuses(memoryview(encode_batch([Record(value=b"", timestamp=RealClock().wall_ms())]))) is None
    )  # of nobody idempotent
    assert checked.refuses(memoryview(b"too short")) is None
    assert checked.refuses(batch(0, epoch=1)) is None  # the producer begins anew
    assert checked.refuses(batch(6)) is None  # and what was before is over


@pytest.mark.spec("CLI-05")
def test_what_a_client_does_not_send_again_is_not_waited_for() -> None:
    checked = Checked()
    checked.note(5, ErrorCode.MESSAGE_TOO_LARGE)
    assert checked.refuses(batch(6)) is None


@pytest.mark.spec("CLI-05")
def test_sequences_wrap() -> None:
    checked = Checked()
    checked.note(MAXIMUM_SEQUENCE)
    assert checked.refuses(batch(0)) is not None
    assert checked.refuses(batch(MAXIMUM_SEQUENCE - 1)) is None
    assert checked.refuses(batch(MAXIMUM_SEQUENCE)) is None
    assert checked.refuses(batch(0)) is None


@pytest.mark.spec("CLI-05")
def test_it_is_forgotten_after_a_while_and_not_kept_without_bound() -> None:
    checked = Checked()
    checked.note(5)
    checked.now_s += REMEMBERED_S / 2
    assert checked.refuses(batch(6)) is not None
    checked.note(6)
    checked.now_s += REMEMBERED_S / 2
    assert checked.refuses(batch(6)) is None
    assert not checked.refusals.refused
    for number in range(MOST + 10):
        checked.note(5, partition=f"t{number}")
    assert len(checked.refusals.refused) == MOST
    assert checked.refuses(batch(6), partition="t9") is None
    assert checked.refuses(batch(6), partition="t10") is not None


class Client(Producing):
    async def send(self, sequence: int, *, partitions: int) -> list[int]:
        """Send to this many partitions at once (several take the general path); return their errors."""
        sent = bytes(batch(sequence))
        reply = self.send_batches(-1, *((TopicPartition("orders", number), sent) for number in range(partitions)))
        return [error for _, error, _ in await answer(reply)]


@pytest.mark.spec("CLI-05")
@pytest.mark.parametrize("partitions", [1, 2])
async def test_the_second_batch_of_a_new_topic_is_not_taken_before_the_first(tmp_path: Path, partitions: int) -> None:
    """The log does not know the producer yet and would accept any sequence: the first batch would be lost."""
    async with Cluster(tmp_path) as cluster:
        [node] = await cluster.add(1)
        client = Client(cluster, node)
        refused = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * partitions
        taken = [ErrorCode.NONE] * partitions
        assert await client.send(0, partitions=partitions) == refused
        cluster.controller.create_topic("orders", [[1]] * partitions)
        assert await client.send(1, partitions=partitions) == refused
        assert await client.send(0, partitions=partitions) == taken
        assert await client.send(1, partitions=partitions) == taken
        assert await client.send(1, partitions=partitions) == taken  # a repetition
