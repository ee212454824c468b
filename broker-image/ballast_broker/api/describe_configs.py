"""DescribeConfigs: configs of topics, groups, this broker and all brokers, and this broker's loggers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ballast_broker.api import broker_loggers
from ballast_broker.api.authorizer import CLUSTER, Operation, group, topic
from ballast_broker.api.context import RequestContext
from ballast_broker.api.topic_names import refusal
from ballast_broker.config.entries import ConfigEntries, ConfigEntry
from ballast_broker.config_types import node_id
from ballast_broker.metadata.image import (
    RESOURCE_BROKER,
    RESOURCE_BROKER_LOGGER,
    RESOURCE_CLIENT_METRICS,
    RESOURCE_GROUP,
    RESOURCE_TOPIC,
    RESOURCE_TYPES,
)
from ballast_broker.turns import InTurns
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.fast.configs import DescribeConfigsResponse, encode_configs, encode_result
from ballast_wire.messages import message
from ballast_wire.wording import WORDING

DYNAMIC_BROKER_LOGGER = 6
NO_TEXT = ""
EMPTY_NAMES = {
    RESOURCE_BROKER_LOGGER: "Broker id must not be empty",
    RESOURCE_CLIENT_METRICS: "Client metrics subscription name must not be empty",
    RESOURCE_GROUP: "Group name must not be empty",
}


async def handle(request: Any, context: RequestContext) -> DescribeConfigsResponse:
    if any(each.resource_type not in RESOURCE_TYPES for each in request.resources):
        # As in Kafka, one unknown resource type fails the whole request.
        raise ApiError(ErrorCode.INVALID_REQUEST, WORDING[ErrorCode.INVALID_REQUEST])
    description = _Description(request.include_synonyms, context)
    results = [description.result(each) async for each in InTurns(request.resources)]
    return DescribeConfigsResponse(context.version, results)


class _Description:
    """One response. Topics with the same overrides are encoded once."""

    def __init__(self, with_synonyms: bool, context: RequestContext) -> None:
        self._with_synonyms = with_synonyms
        self._context = context
        self._image = context.broker.image()
        configs = self._image.configs
        own = configs.of(RESOURCE_BROKER, str(context.broker.node_id))
        self._entries = ConfigEntries(context.broker.config, own, configs.of(RESOURCE_BROKER, ""))
        self._of_topics: dict[tuple[frozenset[tuple[str, str]], frozenset[str]], bytes] = {}

    def result(self, asked: Any) -> bytes:
        error, text = ErrorCode.NONE, NO_TEXT
        try:
            configs = self._configs(asked)
        except ApiError as refused:
            error, text, configs = refused.code, refused.message or NO_TEXT, self._encoded(())
        return encode_result(
            self._context.version,
            error=error,
            text=text,
            resource_type=asked.resource_type,
            resource_name=asked.resource_name,
            configs=configs,
        )

    def _configs(self, asked: Any) -> bytes:
        resource_type, name, context = asked.resource_type, asked.resource_name, self._context
        wanted = frozenset(asked.configuration_keys or ())
        _check_allowed(resource_type, name, context)
        if not name and resource_type in EMPTY_NAMES:
            raise ApiError(ErrorCode.INVALID_REQUEST, EMPTY_NAMES[resource_type])
        if resource_type == RESOURCE_TOPIC:
            return self._of_topic(name, wanted)
        if resource_type == RESOURCE_BROKER:
            return self._encoded(self._of_broker(name), wanted)
        if resource_type == RESOURCE_BROKER_LOGGER:
            _check_broker(name, context, f"expected {context.broker.node_id} but received {name}")
            loggers = [each for each in _loggers() if not wanted or each.name in wanted]
            return encode_configs(context.version, loggers)
        if resource_type == RESOURCE_GROUP:
            return self._encoded(self._entries.of_group(self._image.configs.of(RESOURCE_GROUP, name)), wanted)
        return self._encoded(())  # client metrics: none are stored, setting one is rejected

    def _of_topic(self, name: str, wanted: frozenset[str]) -> bytes:
        illegal = refusal(name)
        if illegal is not None:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, illegal)
        if self._image.topics.by_name(name) is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        overrides = self._image.configs.of(RESOURCE_TOPIC, name)
        key = frozenset(overrides.items()), wanted
        found = self._of_topics.get(key)
        if found is None:
            found = self._of_topics[key] = self._encoded(self._entries.of_topic(overrides), wanted)
        return found

    def _of_broker(self, name: str) -> Iterable[ConfigEntry]:
        if not name:
            return self._entries.of_all_brokers()
        expected = self._context.broker.node_id
        _check_broker(name, self._context, f"expected {expected} or empty string, but received {name}")
        return self._entries.of_broker()

    def _encoded(self, entries: Iterable[ConfigEntry], wanted: frozenset[str] = frozenset()) -> bytes:
        chosen = (each for each in entries if not wanted or each.name in wanted)
        version = self._context.version
        return encode_configs(version, _rendered(chosen, self._with_synonyms))


def _check_allowed(resource_type: int, name: str, context: RequestContext) -> None:
    error, resource = ErrorCode.CLUSTER_AUTHORIZATION_FAILED, CLUSTER
    if resource_type == RESOURCE_TOPIC:
        error, resource = ErrorCode.TOPIC_AUTHORIZATION_FAILED, topic(name)
    elif resource_type == RESOURCE_GROUP:
        error, resource = ErrorCode.GROUP_AUTHORIZATION_FAILED, group(name)
    if not context.authorize(Operation.DESCRIBE_CONFIGS, resource):
        raise ApiError(error, WORDING[error])


def _check_broker(name: str, context: RequestContext, expectation: str) -> None:
    try:
        number = node_id(name)
    except ValueError:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}") from None
    if number != context.broker.node_id:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unexpected broker id, {expectation}")


def _rendered(entries: Iterable[ConfigEntry], with_synonyms: bool) -> list[Any]:
    kind = message("DescribeConfigsResponse").DescribeConfigsResult.DescribeConfigsResourceResult
    return [
        kind(
            name=each.name,
            value=None if each.sensitive else each.value,
            read_only=each.read_only,
            config_source=each.source,
            is_sensitive=each.sensitive,
            synonyms=[
                kind.DescribeConfigsSynonym(name=s.name, value=None if each.sensitive else s.value, source=s.source)
                for s in (each.synonyms if with_synonyms else ())
            ],
            config_type=each.type,
            documentation=None,
        )
        for each in entries
    ]


def _loggers() -> list[Any]:
    kind = message("DescribeConfigsResponse").DescribeConfigsResult.DescribeConfigsResourceResult
    return [
        kind(
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
