"""Founds a new quorum with this node as the first voter, if its disk is empty and nobody knows of another quorum.

The property that requests this outlives the disk. A second quorum of the same cluster would be worse than one voter
less: nodes that follow it would discard what the first one has committed. So every other bootstrap server must answer
that it knows of no quorum; one that does not answer may be the one that knows. Loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

from ballast_broker.raft.describe import describe_request
from ballast_broker.raft.driver import RaftDriver
from ballast_broker.raft.links import PeerLink
from ballast_broker.raft.voters import Endpoint, Voter
from ballast_wire.errors import ErrorCode

logger = logging.getLogger(__name__)

ASK_TIMEOUT_S = 2.0
ASK_AGAIN_S = 0.2
TELL_AGAIN_S = 60.0
ANSWERS = (ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER)


async def found(driver: RaftDriver, first: Voter, others: Iterable[Endpoint]) -> None:
    """Run as an observer until all others have answered; remain one if any of them knows of a quorum."""
    unheard = list(others)
    told_at = float("-inf")
    while driver.epoch <= 0:
        epochs = await asyncio.gather(*(_epoch_known_by(driver, each) for each in unheard))
        if driver.epoch > 0 or max((each or 0 for each in epochs), default=0) > 0:
            break
        unheard = [each for each, epoch in zip(unheard, epochs, strict=True) if epoch is None]
        if not unheard:
            driver.found(first)
            return
        if driver.now() >= told_at + TELL_AGAIN_S:
            told_at = driver.now()
            _tell(unheard)
        await asyncio.sleep(ASK_AGAIN_S)
    logger.warning("controller.quorum.standalone is set and log.dirs is empty, but there is a quorum: joining it")


async def _epoch_known_by(driver: RaftDriver, endpoint: Endpoint) -> int | None:
    """The epoch of the quorum that this node knows of, 0 if it knows of none; None if it does not answer."""
    link = PeerLink(driver.network, endpoint, ASK_TIMEOUT_S)
    try:
        answer = await link.call(describe_request(), 0)
    except (OSError, TimeoutError, ValueError):
        return None
    finally:
        link.close()
    partitions = [partition for topic in answer.topics for partition in topic.partitions]
    if answer.error_code or len(partitions) != 1 or partitions[0].error_code not in ANSWERS:
        return None
    return int(partitions[0].leader_epoch)


def _tell(unheard: Sequence[Endpoint]) -> None:
    logger.warning(
        "controller.quorum.standalone is set and log.dirs is empty: a quorum is founded when %s (of "
        "controller.quorum.bootstrap.servers) has said that there is none yet",
        ", ".join(f"{each.host}:{each.port}" for each in unheard),
    )
