"""Configs, quotas, features, producer ids, registrations, directories: what they write and what they refuse."""

from __future__ import annotations

import math
import time
import uuid
from dataclasses import replace
from typing import Any

import pytest
from tests.broker.controller.cluster import CLUSTER_ID, Cluster
from tests.broker.controller.scene import Scene, create_request, directory, expand_request

from ballast_broker.controller.commands.brokers import register_broker
from ballast_broker.controller.commands.configs import alter_configs, incremental_alter_configs
from ballast_broker.controller.commands.directories import assign_replicas_to_directories
from ballast_broker.controller.commands.features import update_features
from ballast_broker.controller.commands.partitions import create_partitions
from ballast_broker.controller.commands.producer_ids import allocate_producer_ids
from ballast_broker.controller.commands.quotas import alter_client_quotas
from ballast_broker.controller.error_responses import is_not_controller
from ballast_broker.metadata.features import KRAFT_VERSION, SUPPORTED
from ballast_broker.metadata.image import PartitionRegistration
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message

SET, DELETE, APPEND, SUBTRACT = range(4)
NO_ADDRESS = "is no IP address, and names of hosts are not looked up here."
TOO_LARGE = "Proposed value for producer_byte_rate is too large"


def change_configs(
    scene: Scene, resource: tuple[int, str], *changes: tuple[str, int, str | None], validate_only: bool = False
) -> tuple[ErrorCode, str | None]:
    kind = message("IncrementalAlterConfigsRequest")
    configs = [
        kind.AlterConfigsResource.AlterableConfig(name=name, config_operation=operation, value=value)
        for name, operation, value in changes
    ]
    wanted = kind.AlterConfigsResource(resource_type=resource[0], resource_name=resource[1], configs=configs)
    response = scene.run(incremental_alter_configs, kind(resources=[wanted], validate_only=validate_only))
    return ErrorCode(response.responses[0].error_code), response.responses[0].error_message


TOPIC = (2, "orders")


@pytest.mark.spec("TOP-23")
def test_configs_are_set_deleted_appended_and_subtracted() -> None:
    scene = Scene()
    scene.add_topic("orders", [1])
    assert change_configs(scene, TOPIC, ("retention.ms", SET, "5")) == (ErrorCode.NONE, None)
    change_configs(scene, TOPIC, ("cleanup.policy", APPEND, "compact"))
    assert dict(scene.image.configs.of(*TOPIC)) == {"retention.ms": "5", "cleanup.policy": "delete,compact"}
    change_configs(scene, TOPIC, ("cleanup.policy", SUBTRACT, "delete"), ("retention.ms", DELETE, None))
    assert dict(scene.image.configs.of(*TOPIC)) == {"cleanup.policy": "compact"}


@pytest.mark.spec("TOP-23")
def test_the_old_form_resets_what_it_does_not_name() -> None:
    scene = Scene()
    scene.add_topic("orders", [1], retention_ms="5", cleanup_policy="compact")
    kind = message("AlterConfigsRequest")
    config = kind.AlterConfigsResource.AlterableConfig(name="retention.ms", value="7")
    wanted = kind.AlterConfigsResource(resource_type=2, resource_name="orders", configs=[config])
    scene.run(alter_configs, kind(resources=[wanted], validate_only=False))
    assert dict(scene.image.configs.of(*TOPIC)) == {"retention.ms": "7"}


@pytest.mark.spec("TOP-23")
@pytest.mark.parametrize(
    ("resource", "change", "code", "text"),
    [
        (TOPIC, ("colour", SET, "red"), ErrorCode.INVALID_CONFIG, "Unknown topic config name: colour"),
        (
            TOPIC,
            ("retention.ms", APPEND, "5"),
            ErrorCode.INVALID_CONFIG,
            "Can't APPEND to key retention.ms because its type is not LIST.",
        ),
        ((2, "nothing"), ("retention.ms", SET, "5"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None),
        ((4, "x"), ("message.max.bytes", SET, "2"), ErrorCode.INVALID_REQUEST, "Invalid broker name x"),
        ((4, "99"), ("message.max.bytes", SET, "2"), ErrorCode.BROKER_ID_NOT_REGISTERED, "No node with id 99 found."),
        (
            (4, "1"),
            ("min.insync.replicas", SET, "2"),
            ErrorCode.INVALID_CONFIG,
            "Broker-level min.insync.replicas cannot be altered while ELR is enabled.",
        ),
        (
            (4, ""),
            ("min.insync.replicas", DELETE, None),
            ErrorCode.INVALID_CONFIG,
            "Cluster-level min.insync.replicas cannot be removed while ELR is enabled.",
        ),
    ],
)
def test_config_changes_that_are_refused(
    resource: tuple[int, str], change: tuple[Any, ...], code: ErrorCode, text: str | None
) -> None:
    scene = Scene()
    scene.add_topic("orders", [1])
    before = scene.image.configs
    found = change_configs(scene, resource, change)
    assert found[0] is code
    assert text is None or found[1] == text
    assert scene.image.configs is before


@pytest.mark.spec("TOP-23")
def test_a_controller_that_is_no_broker_has_configs_of_its_own() -> None:
    kind = message("IncrementalAlterConfigsRequest")
    config = kind.AlterConfigsResource.AlterableConfig(name="message.max.bytes", config_operation=SET, value="2")
    wanted = kind.AlterConfigsResource(resource_type=4, resource_name="101", configs=[config])
    context = replace(Scene().context, controllers=(101, 102))
    outcome = incremental_alter_configs(context, kind(resources=[wanted], validate_only=False))
    assert (outcome.response.responses[0].error_code, len(outcome.records)) == (0, 1)


@pytest.mark.spec("CLI-09")
@pytest.mark.parametrize("what", ["configs", "partitions"])
def test_a_request_of_many_topics_costs_what_each_of_them_costs(what: str) -> None:
    """`kafka-topics --alter` names all matching topics in one request, which blocks the controller."""
    names = [f"topic-{number}" for number in range(20_000)]
    scene = Scene()
    began = time.thread_time()
    if what == "configs":
        kind = message("IncrementalAlterConfigsRequest")
        wanted = [kind.AlterConfigsResource(resource_type=2, resource_name=name, configs=[]) for name in names]
        answers = scene.run(incremental_alter_configs, kind(resources=wanted, validate_only=False)).responses
    else:
        answers = scene.run(create_partitions, expand_request(*((name, 2, None) for name in names))).results
    assert time.thread_time() - began < 4.0  # comparing each with each took half a minute
    assert {each.error_code for each in answers} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert len(answers) == len(names)


def test_a_config_change_can_be_tried_only() -> None:
    scene = Scene()
    scene.add_topic("orders", [1])
    assert change_configs(scene, TOPIC, ("retention.ms", SET, "5"), validate_only=True)[0] is ErrorCode.NONE
    assert not scene.image.configs.of(*TOPIC)


def change_quota(
    scene: Scene, entity: dict[str, str | None], key: str, value: float | None
) -> tuple[ErrorCode, str | None]:
    kind = message("AlterClientQuotasRequest")
    entry = kind.EntryData(
        entity=[kind.EntryData.EntityData(entity_type=each, entity_name=name) for each, name in entity.items()],
        ops=[kind.EntryData.OpData(key=key, value=value or 0.0, remove=value is None)],
    )
    answer = scene.run(alter_client_quotas, kind(entries=[entry], validate_only=False)).entries[0]
    return ErrorCode(answer.error_code), answer.error_message


def test_client_quotas() -> None:
    scene = Scene()
    assert change_quota(scene, {"user": "ann", "client-id": None}, "producer_byte_rate", 1000.0)[0] is ErrorCode.NONE
    entity = (("client-id", None), ("user", "ann"))
    assert dict(scene.image.client_quotas.by_entity) == {entity: {"producer_byte_rate": 1000.0}}
    change_quota(scene, {"user": "ann", "client-id": None}, "producer_byte_rate", None)
    assert dict(scene.image.client_quotas.by_entity) == {}


@pytest.mark.spec("CLI-11")
@pytest.mark.parametrize(
    ("entity", "key", "value"),
    [
        ({"user": "ann"}, "request_percentage", 0.5),
        ({"client-id": None}, "controller_mutation_rate", 0.1),
        ({"ip": "10.0.0.1"}, "connection_creation_rate", 5.0),
        ({"ip": None}, "connection_creation_rate", 5.0),
    ],
)
def test_quotas_of_all_kinds_are_kept(entity: dict[str, str | None], key: str, value: float) -> None:
    scene = Scene()
    assert change_quota(scene, entity, key, value) == (ErrorCode.NONE, None)
    assert dict(scene.image.client_quotas.by_entity) == {tuple(entity.items()): {key: value}}


@pytest.mark.parametrize(
    ("entity", "key", "value", "text"),
    [
        ({"user": "ann"}, "colour", 1.0, "Invalid configuration key colour"),
        ({"user": "ann"}, "producer_byte_rate", 0.0, "Quota producer_byte_rate must be greater than 0"),
        ({"user": "ann"}, "producer_byte_rate", 1.5, "producer_byte_rate cannot be a fractional value."),
        ({"user": "x"}, "producer_byte_rate", math.nan, "Quota producer_byte_rate must be greater than 0"),
        ({"user": "x"}, "producer_byte_rate", math.inf, f"{TOO_LARGE} for a LONG."),
        ({"planet": "x"}, "producer_byte_rate", 1.0, "Unhandled client quota entity type: planet"),
        ({"user": ""}, "producer_byte_rate", 1.0, "Empty user not supported"),
        ({"ip": "here"}, "connection_creation_rate", 1.0, f"here {NO_ADDRESS}"),
        ({"ip": "10.0.0.1"}, "connection_creation_rate", 0.5, "connection_creation_rate cannot be a fractional value."),
        ({"ip": "10.0.0.1"}, "request_percentage", 1.0, "Invalid configuration key request_percentage"),
        ({"user": "ann"}, "connection_creation_rate", 1.0, "Invalid configuration key connection_creation_rate"),
        ({"user": "ann"}, "request_percentage", -1.0, "Quota request_percentage must be greater than 0"),
        ({}, "producer_byte_rate", 1.0, "Invalid empty client quota entity"),
    ],
)
def test_quotas_that_are_refused(entity: dict[str, str | None], key: str, value: float, text: str) -> None:
    assert change_quota(Scene(), entity, key, value) == (ErrorCode.INVALID_REQUEST, text)


def change_feature(scene: Scene, name: str, level: int, kind_of_change: int = 1) -> tuple[ErrorCode, str | None]:
    kind = message("UpdateFeaturesRequest")
    update = kind.FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind_of_change)
    response = scene.run(update_features, kind(version=2, feature_updates=[update], validate_only=False))
    return ErrorCode(response.error_code), response.error_message


@pytest.mark.spec("CLU-04")
def test_feature_levels() -> None:
    scene = Scene()
    name = "eligible.leader.replicas.version"
    assert change_feature(scene, name, 0, 2) == (ErrorCode.NONE, None)
    assert scene.image.features.level(name) == 0
    assert change_feature(scene, name, 1) == (ErrorCode.NONE, None)
    refused = "The update failed for all features since the following feature had an error: "
    assert change_feature(scene, name, 0) == (
        ErrorCode.INVALID_UPDATE_VERSION,
        f"{refused}Invalid update version 0 for feature {name}. Can't downgrade the version of this "
        "feature without setting the upgrade type to either safe or unsafe downgrade.",
    )
    code, text = change_feature(scene, "metadata.version", 99)
    assert code is ErrorCode.INVALID_UPDATE_VERSION
    assert text == (
        f"{refused}Invalid update version 99 for feature metadata.version. Local controller 1 only supports versions "
        "27-27"
    )


@pytest.mark.spec("CLU-04")
@pytest.mark.parametrize(
    ("features", "why"),
    [
        ({}, "Controller 2 does not support this feature."),
        ({"group.version": (0, 0)}, "Controller 2 does not support this feature."),
        ({"group.version": (2, 3)}, "Controller 2 only supports versions 2-3"),
    ],
    ids=["unknown", "none", "others"],
)
def test_no_level_goes_up_that_another_voter_does_not_know(features: dict[str, tuple[int, int]], why: str) -> None:
    """It may be the next active controller, and must know how to write records of that level."""
    scene = Scene()
    assert change_feature(scene, "group.version", 0, 2) == (ErrorCode.NONE, None)
    scene.voters_features = {2: features}
    code, text = change_feature(scene, "group.version", 1)
    assert code is ErrorCode.INVALID_UPDATE_VERSION
    assert text is not None
    assert text.endswith(why)
    assert scene.image.features.level("group.version") == 0


@pytest.mark.spec("CLU-04", "CLI-10")
def test_a_feature_that_nobody_has_cannot_be_had() -> None:
    scene = Scene()
    code, text = change_feature(scene, "streams.version", 1)
    assert code is ErrorCode.INVALID_UPDATE_VERSION
    assert text is not None
    assert text.endswith("Local controller 1 does not support this feature.")


def test_producer_id_blocks_never_overlap() -> None:
    scene = Scene()
    firsts = []
    for broker_id in (1, 2, 1):
        request = message("AllocateProducerIdsRequest")(broker_id=broker_id, broker_epoch=1000 + broker_id)
        response = scene.run(allocate_producer_ids, request)
        firsts.append((response.producer_id_start, response.producer_id_len))
    assert firsts == [(0, 1000), (1000, 1000), (2000, 1000)]


def registration(**changes: Any) -> Any:
    kind = message("BrokerRegistrationRequest")
    features = {**SUPPORTED, **changes.pop("features", {})}
    fields: dict[str, Any] = {
        "broker_id": 7,
        "cluster_id": CLUSTER_ID,
        "incarnation_id": uuid.UUID(int=777),
        "listeners": [kind.Listener(name="PLAINTEXT", host="h", port=1)],
        "features": [
            kind.Feature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in features.items()
        ],
        "log_dirs": [directory(7)],
    }
    return kind(**(fields | changes))


@pytest.mark.spec("CLU-01")
def test_a_registration_gets_the_offset_of_its_record_as_epoch() -> None:
    scene = Scene()
    offset = scene.offset
    response = scene.run(register_broker, registration(), session_is_valid=False)
    assert response.broker_epoch == offset
    assert scene.image.cluster.brokers[7].fenced
    again = scene.run(register_broker, registration(), session_is_valid=True)
    assert again.broker_epoch == offset, "the same incarnation keeps its epoch"
    other = scene.run(register_broker, registration(incarnation_id=uuid.UUID(int=778)), session_is_valid=False)
    assert other.broker_epoch > offset


@pytest.mark.spec("CLU-01", "DIR-05")
@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        (
            {"cluster_id": "other"},
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"Expected cluster ID {CLUSTER_ID}, but got cluster ID other",
        ),
        ({"log_dirs": []}, ErrorCode.INVALID_REGISTRATION, "No directories specified in request"),
        ({"log_dirs": [uuid.UUID(int=2)]}, ErrorCode.INVALID_REGISTRATION, "Reserved directory ID in request"),
        ({"log_dirs": [directory(7)] * 2}, ErrorCode.INVALID_REGISTRATION, "Duplicate directory ID in request"),
        (
            {"log_dirs": [directory(1)]},
            ErrorCode.INVALID_REGISTRATION,
            "Broker 1 is already registered with directory AAAAAAAAAAAAAAAAAAAF3A",
        ),
        (
            {"features": {"eligible.leader.replicas.version": (0, 0)}},
            ErrorCode.UNSUPPORTED_VERSION,
            "Unable to register because the broker does not support finalized version 1 of "
            "eligible.leader.replicas.version. The broker wants a version between 0 and 0, inclusive.",
        ),
    ],
)
def test_registrations_that_are_refused(changes: dict[str, Any], code: ErrorCode, text: str) -> None:
    with pytest.raises(ApiError) as refused:
        Scene().run(register_broker, registration(**changes), session_is_valid=False)
    assert (refused.value.code, refused.value.message) == (code, text)


@pytest.mark.spec("CLU-05")
def test_a_broker_that_does_not_understand_voters_in_the_log_is_refused_once_they_are_there() -> None:
    old = registration(features={KRAFT_VERSION: (0, 0)})
    scene = Scene()
    scene.run(register_broker, old, session_is_valid=False)
    with pytest.raises(ApiError, match=r"does not support finalized version 1 of kraft\.version"):
        register_broker(replace(scene.context, kraft_version=1), old, session_is_valid=False)
    register_broker(
        replace(scene.context, kraft_version=1), registration(features={KRAFT_VERSION: (0, 1)}), session_is_valid=True
    )


@pytest.mark.spec("CLU-05")
@pytest.mark.parametrize(
    ("before", "level", "kind", "told"),
    [
        (0, 1, 1, "does not support this feature"),
        (1, 0, 2, "Can't downgrade the version of this feature."),
        (0, 2, 1, "only supports versions 0-1"),
        (0, 0, 1, None),
    ],
)
def test_the_level_of_the_quorum_only_goes_up_and_only_with_everybody(
    before: int, level: int, kind: int, told: str | None
) -> None:
    scene = Scene()
    scene.run(register_broker, registration(features={KRAFT_VERSION: (0, 0)}), session_is_valid=False)
    request = message("UpdateFeaturesRequest")
    update = request.FeatureUpdateKey(feature=KRAFT_VERSION, max_version_level=level, upgrade_type=kind)
    outcome = update_features(
        replace(scene.context, kraft_version=before),
        request(version=2, timeout_ms=1, feature_updates=[update], validate_only=False),
    )
    assert not outcome.records, "the quorum writes it, not the controller"
    assert (told is None) == (outcome.response.error_code == 0)
    assert told is None or told in outcome.response.error_message


def assign(scene: Scene, broker_id: int, place: uuid.UUID, topic_id: uuid.UUID, *partitions: int) -> list[ErrorCode]:
    kind = message("AssignReplicasToDirsRequest")
    data = kind.DirectoryData.TopicData
    wanted = kind.DirectoryData(
        id=place,
        topics=[data(topic_id=topic_id, partitions=[data.PartitionData(partition_index=each) for each in partitions])],
    )
    request = kind(broker_id=broker_id, broker_epoch=1000 + broker_id, directories=[wanted])
    response = scene.run(assign_replicas_to_directories, request)
    return [ErrorCode(each.error_code) for each in response.directories[0].topics[0].partitions]


@pytest.mark.spec("DIR-05", "DIR-29")
def test_a_broker_tells_where_its_replicas_are() -> None:
    scene = Scene(directories=2)
    places = (directory(1, 0), directory(2, 0))
    topic_id = scene.add_topic("orders", PartitionRegistration((1, 2), places, (1, 2), leader=1), [3])
    found = assign(scene, 1, directory(1, 1), topic_id, 0, 1, 5)
    assert found == [ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    partition = scene.partition("orders")
    assert partition.directories == (directory(1, 1), directory(2, 0))
    assert (partition.leader, partition.leader_epoch) == (1, 0)
    assert assign(scene, 1, directory(1, 1), uuid.UUID(int=5), 0) == [ErrorCode.UNKNOWN_TOPIC_ID]


@pytest.mark.spec("DIR-41")
def test_a_replica_told_to_be_on_a_lost_directory_stops_leading() -> None:
    scene = Scene(directories=2)
    topic_id = scene.add_topic("orders", [1, 2])
    assign(scene, 1, directory(1, 9), topic_id, 0)
    partition = scene.partition("orders")
    assert (partition.leader, partition.isr) == (2, (2,))


@pytest.mark.spec("TOP-05")
async def test_only_the_active_controller_answers_and_any_broker_finds_it() -> None:
    async with Cluster(voters=3) as cluster:
        idle = next(node for node in cluster.live if node is not cluster.active)
        assert idle.service is not None
        response = await idle.service.handle(19, 7, create_request("orders"))
        assert response.topics[0].error_code == ErrorCode.NOT_CONTROLLER
        assert is_not_controller(response)
        assert is_not_controller(await idle.service.handle(37, 3, expand_request(("orders", 2, None))))
        response = await idle.client.call(create_request("orders"), 7)
        assert response.topics[0].error_code == 0


@pytest.mark.spec("CLU-04")
def test_a_cluster_cannot_be_without_a_version_of_its_metadata() -> None:
    """With no feature left, the next controller would bootstrap the cluster again, and lose what was configured."""
    scene = Scene()
    kind = message("UpdateFeaturesRequest")
    unsafe = [
        kind.FeatureUpdateKey(feature=name, max_version_level=0, upgrade_type=3)
        for name in ("eligible.leader.replicas.version", "metadata.version")
    ]
    response = scene.run(update_features, kind(feature_updates=unsafe, timeout_ms=1000, validate_only=False))
    assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "Local controller 1 only supports versions 27-27" in response.error_message
    assert scene.image.features.level("metadata.version") == 27
    response = scene.run(update_features, kind(feature_updates=unsafe[:1], timeout_ms=1000, validate_only=False))
    assert response.error_code == ErrorCode.NONE
