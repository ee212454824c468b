"""Producer ids from a broker's block, and what clients are told while it has none."""

from __future__ import annotations

from typing import Any

import pytest

from ballast_broker.api.producer_ids import ProducerIds
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message


class Controller:
    """Gives prepared answers, one after the other."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    async def call(self, request: Any, version: int, *, timeout_s: float) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, ApiError):
            raise answer
        return message("AllocateProducerIdsResponse")(**answer)


@pytest.mark.spec("CLI-05", "CLI-10")
async def test_who_wants_an_id_while_no_controller_answers_is_to_come_again() -> None:
    """With the error that Apache Kafka uses: many clients take any other for fatal."""
    controller: Any = Controller(
        ApiError(ErrorCode.REQUEST_TIMED_OUT),
        {"error_code": ErrorCode.STALE_BROKER_EPOCH},
        {"error_code": 0, "producer_id_start": 5000, "producer_id_len": 2},
    )
    ids = ProducerIds(1, lambda: 7, controller)
    for _ in range(2):
        with pytest.raises(ApiError) as refused:
            await ids.next()
        assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert [await ids.next(), await ids.next()] == [5000, 5001]
