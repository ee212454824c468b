"""DescribeConfigs: topics, this broker, what is set for all brokers, and this broker's loggers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ballast_broker.api import broker_loggers
from ballast_broker.api.authorizer import CLUSTER, Operation, authorize, topic
from ballast_broker.api.context import RequestContext
from ballast_broker.api.topic_names import refusal
from ballast_broker.config_entries import ConfigEntries, ConfigEntry
from ballast_broker.metadata.image import (
    RESOURCE_BROKER,
    RESOURCE_BROKER_LOGGER,
    RESOURCE_CLIENT_METRICS,
    RESOURCE_GROUP,
    RESOURCE_TOPIC,
)
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message
from ballast_wire.wording import WORDING

TYPES = (RESOURCE_TOPIC, RESOURCE_BROKER, RESOURCE_BROKER_LOGGER, RESOURCE_CLIENT_METRICS, RESOURCE_GROUP)
DYNAMIC_BROKER_LOGGER = 6
NO_TEXT = ""
EMPTY_NAMES = {
    RESOURCE_BROKER_LOGGER: "Broker id must not be empty",
    RESOURCE_CLIENT_METRICS: "Client metrics subscription name must not be empty",
    RESOURCE_GROUP: "Group name must not be empty",
}


async def handle(request: Any, context: RequestContext) -> Any:
    if any(each.resource_type not in TYPES for each in request.resources):
        # One kind of resource that does not exist spoils the whole request.
        raise ApiError(ErrorCode.INVALID_REQUEST, WORDING[ErrorCode.INVALID_REQUEST])
    results = [_result(each, request, context) for each in request.resources]
    return message("DescribeConfigsResponse")(version=context.version, results=results)


def _result(asked: Any, request: Any, context: RequestContext) -> Any:
    kind = message("DescribeConfigsResponse").DescribeConfigsResult
    error, text, configs = ErrorCode.NONE, NO_TEXT, []
    try:
        configs = _configs(asked, request.include_synonyms, context)
    except ApiError as refused:
        error, text = refused.code, refused.message or NO_TEXT
    if asked.configuration_keys:
        wanted = frozenset(asked.configuration_keys)
        configs = [each for each in configs if each.name in wanted]
    return kind(
        version=context.version,
        error_code=error,
        error_message=text,
        resource_type=asked.resource_type,
        resource_name=asked.resource_name,
        configs=configs,
    )


def _configs(asked: Any, with_synonyms: bool, context: RequestContext) -> list[Any]:
    resource_type, name = asked.resource_type, asked.resource_name
    if not name and resource_type in EMPTY_NAMES:
        raise ApiError(ErrorCode.INVALID_REQUEST, EMPTY_NAMES[resource_type])
    _check_allowed(resource_type, name, context)
    if resource_type == RESOURCE_TOPIC:
        return _rendered(_of_topic(name, context), with_synonyms, context.version)
    if resource_type == RESOURCE_BROKER:
        return _rendered(_of_broker(name, context), with_synonyms, context.version)
    if resource_type == RESOURCE_BROKER_LOGGER:
        _check_broker(name, context, f"expected {context.broker.node_id} but received {name}")
        return _loggers(context.version)
    return []  # of groups and client metrics none are kept: setting one is refused


def _check_allowed(resource_type: int, name: str, context: RequestContext) -> None:
    if resource_type == RESOURCE_TOPIC:
        if not authorize(context.principal, Operation.DESCRIBE_CONFIGS, topic(name)):
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            raise ApiError(error, WORDING[error])
    elif not authorize(context.principal, Operation.DESCRIBE_CONFIGS, CLUSTER):
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        raise ApiError(error, WORDING[error])


def _entries(context: RequestContext) -> ConfigEntries:
    configs = context.broker.image().configs
    own = configs.of(RESOURCE_BROKER, str(context.broker.node_id))
    return ConfigEntries(context.broker.config, own, configs.of(RESOURCE_BROKER, ""))


def _of_topic(name: str, context: RequestContext) -> Iterable[ConfigEntry]:
    illegal = refusal(name)
    if illegal is not None:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, illegal)
    image = context.broker.image()
    if image.topics.by_name(name) is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return _entries(context).of_topic(image.configs.of(RESOURCE_TOPIC, name))


def _of_broker(name: str, context: RequestContext) -> Iterable[ConfigEntry]:
    if not name:
        return _entries(context).of_all_brokers()
    _check_broker(name, context, f"expected {context.broker.node_id} or empty string, but received {name}")
    return _entries(context).of_broker()


def _check_broker(name: str, context: RequestContext, expectation: str) -> None:
    try:
        number = int(name)
    except ValueError:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}") from None
    if number != context.broker.node_id:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unexpected broker id, {expectation}")


def _rendered(entries: Iterable[ConfigEntry], with_synonyms: bool, version: int) -> list[Any]:
    kind = message("DescribeConfigsResponse").DescribeConfigsResult.DescribeConfigsResourceResult
    return [
        kind(
            version=version,
            name=each.name,
            value=each.value,
            read_only=each.read_only,
            config_source=each.source,
            is_sensitive=False,
            synonyms=[
                kind.DescribeConfigsSynonym(version=version, name=s.name, value=s.value, source=s.source)
                for s in (each.synonyms if with_synonyms else ())
            ],
            config_type=each.type,
            documentation=None,
        )
        for each in entries
    ]


def _loggers(version: int) -> list[Any]:
    kind = message("DescribeConfigsResponse").DescribeConfigsResult.DescribeConfigsResourceResult
    return [
        kind(
            version=version,
            name=name,
            value=level,
            read_only=False,
            config_source=DYNAMIC_BROKER_LOGGER,
            is_sensitive=False,
            synonyms=[],
            documentation=NO_TEXT,
        )
        for name, level in broker_loggers.levels().items()
    ]
