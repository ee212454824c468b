"""DescribeConfigs responses that are written by hand are what the general engine writes."""

from __future__ import annotations

from typing import Any

import pytest

from ballast_wire.fast.configs import DescribeConfigsResponse, encode_configs, encode_result
from ballast_wire.messages import message


def configs_of(version: int, count: int) -> list[Any]:
    kind = message("DescribeConfigsResponse").DescribeConfigsResult.DescribeConfigsResourceResult
    synonym = kind.DescribeConfigsSynonym(version=version, name="log.a", value=None, source=5)
    return [
        kind(
            version=version,
            name=f"a.{number}",
            value="v" * number,
            read_only=False,
            config_source=1,
            is_sensitive=False,
            synonyms=[synonym] * (number % 3),
            config_type=2,
            documentation=None,
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("version", range(1, 5))
@pytest.mark.parametrize("results", [0, 1, 200])
@pytest.mark.parametrize("configs", [0, 1, 200])
def test_as_the_engine(version: int, results: int, configs: int) -> None:
    kind = message("DescribeConfigsResponse")
    described = configs_of(version, configs)
    fields: list[dict[str, Any]] = [
        {"resource_type": 2, "resource_name": "t" * number, "error_code": number % 2 * 3, "error_message": text}
        for number in range(results)
        for text in ["" if number % 3 else None]
    ]
    whole = kind(
        version=version,
        results=[kind.DescribeConfigsResult(version=version, configs=described, **each) for each in fields],
    )
    encoded = encode_configs(version, described)
    by_hand = DescribeConfigsResponse(
        version,
        [
            encode_result(
                version,
                error=each["error_code"],
                text=each["error_message"],
                resource_type=2,
                resource_name=each["resource_name"],
                configs=encoded,
            )
            for each in fields
        ],
    )
    assert by_hand.encode(version) == bytes(whole.encode(version=version))
    assert list(by_hand.error_codes()) == [3] * (results // 2)
