"""The part of UpdateFeatures outside the image: what the other voters support, and the quorum's kraft.version.

Any voter may become the active controller. No registration tells which features a voter supports, so it is asked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from ballast_broker.controller.commands.context import CommandContext, Outcome
from ballast_broker.controller.commands.features import raises_a_level, update_features
from ballast_broker.metadata.features import KRAFT_VERSION
from ballast_broker.raft.driver import RaftDriver

Run = Callable[[Callable[[CommandContext], Outcome]], Awaitable[Any]]


async def update_features_of_all(context: CommandContext, request: Any, driver: RaftDriver, run: Run) -> Any:
    """Return the response; raise ApiError if a level would be raised and a voter does not say that it supports it."""
    known = await driver.voter_requests.features_of_others() if raises_a_level(context, request) else {}
    response = await run(lambda now: update_features(replace(now, voters_features=known), request))
    if not response.error_code:
        await _upgrade_quorum(request, driver)
    return response


async def _upgrade_quorum(request: Any, driver: RaftDriver) -> None:
    """kraft.version is not a metadata record: the quorum writes it as a control record."""
    wanted = [each.max_version_level for each in request.feature_updates if each.feature == KRAFT_VERSION]
    if max(wanted, default=0) > driver.kraft_version:
        await driver.voter_requests.upgrade(validate_only=bool(request.validate_only))
