"""ApiVersions: the API versions this broker supports, and the cluster's finalized features."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from ballast_broker.api.context import RequestContext
from ballast_broker.api.registry import BROKER_APIS
from ballast_broker.metadata.features import KRAFT_VERSION, SUPPORTED
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message

API_VERSIONS = BROKER_APIS[18]
FIRST_VERSION_WITH_SOFTWARE = 3
FIRST_VERSION_WITH_MINIMUM_ZERO = 4
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


async def handle(request: Any, context: RequestContext) -> Any:
    kind = message("ApiVersionsResponse")
    version = context.version
    if version > API_VERSIONS.highest or version < API_VERSIONS.lowest:
        only = [_range(kind, API_VERSIONS.key, API_VERSIONS.lowest, API_VERSIONS.highest, 0)]
        return kind(version=0, error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=only)
    if version >= FIRST_VERSION_WITH_SOFTWARE:
        for text in (request.client_software_name, request.client_software_version):
            if _SOFTWARE.fullmatch(text) is None:
                raise ApiError(ErrorCode.INVALID_REQUEST)
    features = _features(kind, context) if version >= FIRST_VERSION_WITH_SOFTWARE else {}
    return kind(version=version, error_code=ErrorCode.NONE, api_keys=_ranges(version), **features)


@cache
def _ranges(version: int) -> list[Any]:
    """Cached: equal for everybody and requested on each connection. Callers must not modify it."""
    kind = message("ApiVersionsResponse")
    return [_range(kind, api.key, api.lowest, api.highest, version) for api in BROKER_APIS.values()]


def _range(kind: Any, key: int, lowest: int, highest: int, version: int) -> Any:
    return kind.ApiVersion(version=version, api_key=key, min_version=lowest, max_version=highest)


def _features(kind: Any, context: RequestContext) -> dict[str, Any]:
    """The tagged fields. Old clients cannot parse a feature whose lowest level is 0, so they do not get it."""
    version = context.version
    image = context.broker.image()
    supported = [
        kind.SupportedFeatureKey(version=version, name=name, min_version=low, max_version=high)
        for name, (low, high) in SUPPORTED.items()
        if low > 0 or version >= FIRST_VERSION_WITH_MINIMUM_ZERO
    ]
    finalized = [
        kind.FinalizedFeatureKey(version=version, name=name, max_version_level=level, min_version_level=level)
        for name, level in (*image.features.levels.items(), (KRAFT_VERSION, context.broker.kraft_version()))
        if level > 0
    ]
    return {
        "supported_features": supported,
        "finalized_features_epoch": image.offset,
        "finalized_features": finalized,
    }
