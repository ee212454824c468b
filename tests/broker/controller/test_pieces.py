"""A broker with thousands of replicas is fenced and unfenced piece by piece; what happens in between is not lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.broker.controller.scene import Scene, create_request, directory

from ballast_broker.controller.commands.brokers import (
    NEVER,
    BrokerState,
    Liveness,
    before_registration,
    broker_heartbeat,
    directories_offline,
    fence_broker,
    register_broker,
    unfence_broker,
    unregister_broker,
)
from ballast_broker.controller.commands.configs import RESOURCES_PER_PIECE, incremental_alter_configs
from ballast_broker.controller.commands.context import MAX_RECORDS_PER_BATCH, Outcome
from ballast_broker.controller.commands.elections import elect_leaders, offline_elections
from ballast_broker.controller.commands.partitions import create_partitions
from ballast_broker.controller.commands.pieces import PLACES_PER_PIECE, RECORDS_PER_PIECE
from ballast_broker.controller.commands.quotas import alter_client_quotas
from ballast_broker.controller.commands.reassignments import alter_partition_reassignments
from ballast_broker.controller.commands.scram import alter_user_scram_credentials
from ballast_broker.controller.commands.topics import TOPICS_PER_PIECE, create_topics
from ballast_broker.controller.service import RECORDS_PER_SLICE
from ballast_broker.controller.sessions import NOT_YET
from ballast_broker.metadata.image import PartitionRegistration
from ballast_broker.metadata.partition_records import PartitionChangeRecord
from ballast_broker.metadata.records import record
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message

PARTITIONS = 2 * PLACES_PER_PIECE + 100


@pytest.fixture
def scene() -> Scene:
    scene = Scene()
    scene.add_topic("orders", *([[1, 2, 3]] * PARTITIONS))
    return scene


def pieces(scene: Scene, outcome: Outcome) -> Iterator[Outcome]:
    """Apply each piece before the next one is made."""
    piece: Outcome | None = outcome
    while piece is not None:
        scene.apply(piece.records)
        yield piece
        piece = piece.rest(scene.context) if piece.rest is not None else None


def leaders(scene: Scene) -> set[int]:
    return {scene.partition("orders", number).leader for number in range(PARTITIONS)}


@pytest.mark.spec("CLU-10", "CLU-01")
def test_a_dead_broker_with_many_partitions_holds_nobody_up_for_long(scene: Scene) -> None:
    sizes = [len(piece.records) for piece in pieces(scene, fence_broker(scene.context, 1))]
    assert sizes == [PLACES_PER_PIECE, PLACES_PER_PIECE, PARTITIONS - 2 * PLACES_PER_PIECE + 1]
    assert leaders(scene) == {2}
    assert scene.image.cluster.brokers[1].fenced


def test_what_it_joins_meanwhile_it_leaves_as_well(scene: Scene) -> None:
    """Its session has timed out, but it lives: a leader takes it back into an ISR before it is fenced."""
    for number, piece in enumerate(pieces(scene, fence_broker(scene.context, 1))):
        if number == 0:
            gone = piece.records[0]
            back = PartitionChangeRecord(topic_id=gone.topic_id, partition_id=gone.partition_id, isr=[1, 2, 3])
            scene.apply([back])
            assert 1 in scene.partition("orders", gone.partition_id).isr
    assert scene.image.cluster.brokers[1].fenced
    assert not any(1 in scene.partition("orders", number).isr for number in range(PARTITIONS))


def test_a_new_life_that_begins_meanwhile_is_not_fenced_for_the_old_one(scene: Scene) -> None:
    for number, _ in enumerate(pieces(scene, fence_broker(scene.context, 1))):
        if number == 0:
            scene.change_broker(1, epoch=5000)
    assert not scene.image.cluster.brokers[1].fenced


def registration(scene: Scene) -> Any:
    kind = message("BrokerRegistrationRequest")
    before = scene.image.cluster.brokers[1]
    return kind(
        broker_id=1,
        cluster_id=scene.config.cluster_id,
        incarnation_id=directory(1, 77),
        listeners=[kind.Listener(name="PLAINTEXT", host="localhost", port=9001)],
        features=[
            kind.Feature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in before.features.items()
        ],
        log_dirs=sorted(before.directories),
        previous_broker_epoch=-1,
    )


@pytest.mark.spec("CLU-01", "CLU-11")
def test_who_sees_a_new_life_registered_sees_that_it_leads_nothing(scene: Scene) -> None:
    """Otherwise a broker that returned would act on leaderships of its previous life, perhaps without the data."""
    request = registration(scene)
    scene.commit(before_registration(scene.context, request))
    assert leaders(scene) == {2}
    outcome = register_broker(scene.context, request, session_is_valid=False)
    assert outcome.atomic
    assert outcome.rest is None
    assert len(outcome.records) == 1


@pytest.mark.spec("CLU-12")
def test_a_broker_that_leaves_says_so_first_and_goes_when_it_leads_nothing(scene: Scene) -> None:
    def ask() -> Outcome:
        request = message("BrokerHeartbeatRequest")(
            broker_id=1, broker_epoch=scene.image.cluster.brokers[1].epoch, current_metadata_offset=10_000,
            want_fence=False, want_shut_down=True, offline_log_dirs=[],
        )  # fmt: skip
        return broker_heartbeat(scene.context, request, Liveness(10_000, 0))[0]

    told = []
    for piece in pieces(scene, ask()):
        told.append(len(piece.records))
        assert not piece.response or not piece.response.should_shut_down
    assert max(told) <= PLACES_PER_PIECE + 1
    assert scene.image.cluster.brokers[1].in_controlled_shutdown
    assert leaders(scene) == {2}
    assert ask().response.should_shut_down


@pytest.mark.spec("CLU-02", "CLU-12")
def test_the_next_controller_ends_what_the_last_one_began_for_a_broker_that_leaves(scene: Scene) -> None:
    def ask(known: int) -> Outcome:
        request = message("BrokerHeartbeatRequest")(
            broker_id=1, broker_epoch=scene.image.cluster.brokers[1].epoch, current_metadata_offset=10_000,
            want_fence=False, want_shut_down=True, offline_log_dirs=[],
        )  # fmt: skip
        return broker_heartbeat(scene.context, request, Liveness(10_000, known))[0]

    scene.apply(ask(NEVER).records)  # the first piece; then the controller dies
    assert leaders(scene) == {1, 2}
    assert not ask(NOT_YET).records  # while one is at it
    scene.commit(ask(NEVER))
    assert leaders(scene) == {2}
    assert ask(NEVER).response.should_shut_down


@pytest.mark.spec("CLU-02", "DIR-41")
def test_the_next_controller_ends_what_the_last_one_began_for_a_directory_that_failed() -> None:
    scene = Scene(directories=2)
    places = (directory(1, 0), directory(2), directory(3))
    scene.add_topic("orders", *([PartitionRegistration((1, 2, 3), places, (1, 2, 3), leader=1)] * PARTITIONS))

    def told() -> Outcome:
        request = message("BrokerHeartbeatRequest")(
            broker_id=1, broker_epoch=scene.image.cluster.brokers[1].epoch, current_metadata_offset=10_000,
            want_fence=False, want_shut_down=False, offline_log_dirs=[directory(1, 0)],
        )  # fmt: skip
        return broker_heartbeat(scene.context, request, Liveness(10_000, NEVER))[0]

    scene.apply(told().records[:RECORDS_PER_SLICE])  # no more than the first batch is committed
    assert leaders(scene) == {1, 2}
    scene.commit(told())
    assert leaders(scene) == {2}
    assert scene.image.cluster.brokers[1].directories == {directory(1, 1)}


@pytest.mark.spec("DIR-41", "CLI-09")
def test_a_directory_with_many_partitions_fails_piece_by_piece_and_what_else_the_broker_wants_waits() -> None:
    scene = Scene(directories=2)
    places = (directory(1, 0), directory(2), directory(3))
    there = PartitionRegistration((1, 2, 3), places, (1, 2, 3), leader=1)
    elsewhere = PartitionRegistration((1, 2, 3), (directory(1, 1), *places[1:]), (1, 2, 3), leader=1)
    scene.add_topic("orders", *([there] * PARTITIONS))
    scene.add_topic("payments", elsewhere)

    def told() -> tuple[Outcome, BrokerState]:
        request = message("BrokerHeartbeatRequest")(
            broker_id=1, broker_epoch=scene.image.cluster.brokers[1].epoch, current_metadata_offset=10_000,
            want_fence=True, want_shut_down=False, offline_log_dirs=[directory(1, 0)],
        )  # fmt: skip
        return broker_heartbeat(scene.context, request, Liveness(10_000, NEVER))

    outcome, state = told()
    assert state is BrokerState.UNFENCED
    sizes = []
    for piece in pieces(scene, outcome):
        sizes.append(len(piece.records))
        if len(sizes) == 1:
            gone = piece.records[0]
            back = PartitionChangeRecord(topic_id=gone.topic_id, partition_id=gone.partition_id, isr=[1, 2, 3])
            scene.apply([back])
    assert sizes == [PLACES_PER_PIECE, PLACES_PER_PIECE, PARTITIONS - 2 * PLACES_PER_PIECE + 2]
    assert scene.image.cluster.brokers[1].directories == {directory(1, 1)}
    assert not any(1 in scene.partition("orders", number).isr for number in range(PARTITIONS))
    assert scene.partition("payments").leader == 1
    assert not scene.image.cluster.brokers[1].fenced
    outcome, state = told()
    assert state is BrokerState.FENCED
    scene.commit(outcome)
    assert scene.image.cluster.brokers[1].fenced


@pytest.mark.spec("DIR-41")
def test_a_new_life_keeps_what_a_directory_of_the_old_one_would_lose() -> None:
    scene = Scene(directories=2)
    places = (directory(1, 0), directory(2), directory(3))
    scene.add_topic("orders", *([PartitionRegistration((1, 2, 3), places, (1, 2, 3), leader=1)] * PARTITIONS))
    outcome = directories_offline(scene.context, scene.image.cluster.brokers[1], frozenset({directory(1, 0)}))
    for number, _ in enumerate(pieces(scene, outcome)):
        if number == 0:
            scene.change_broker(1, epoch=5000)
    assert leaders(scene) == {1, 2}
    assert len(scene.image.cluster.brokers[1].directories) == 2


@pytest.mark.spec("CLU-02", "CLU-11")
def test_the_next_controller_ends_what_the_last_one_began_for_a_broker_that_came(scene: Scene) -> None:
    for broker_id in (1, 2, 3):
        scene.commit(fence_broker(scene.context, broker_id))
    assert leaders(scene) == {-1}
    scene.apply(unfence_broker(scene.context, scene.image.cluster.brokers[3]).records)
    assert leaders(scene) == {-1, 3}
    scene.run(offline_elections)
    assert leaders(scene) == {3}


@pytest.mark.spec("CLU-01", "CLU-10", "CLU-11")
@pytest.mark.parametrize("elr", [True, False])
@pytest.mark.parametrize("pieces_before", [1, 2])
def test_a_broker_that_dies_while_it_is_given_the_lead_keeps_none(elr: bool, pieces_before: int) -> None:
    """Otherwise nobody would look at the partition again when a broker returns that could lead it."""
    scene = Scene(elr=elr)
    scene.add_topic("orders", *([[1, 2, 3]] * PARTITIONS))
    for broker_id in (1, 2, 3):
        scene.commit(fence_broker(scene.context, broker_id))
    coming = pieces(scene, unfence_broker(scene.context, scene.image.cluster.brokers[3]))
    for _ in range(pieces_before):
        next(coming)
    assert leaders(scene) == {-1, 3}
    scene.commit(fence_broker(scene.context, 3))
    list(coming)
    assert scene.image.cluster.brokers[3].fenced
    assert leaders(scene) == {-1}


@pytest.mark.spec("CLU-33")
def test_what_a_broker_joins_while_it_is_unregistered_it_leaves_as_well(scene: Scene) -> None:
    request = message("UnregisterBrokerRequest")(broker_id=1)
    for number, piece in enumerate(pieces(scene, unregister_broker(scene.context, request))):
        if number == 0:
            gone = piece.records[0]
            back = PartitionChangeRecord(topic_id=gone.topic_id, partition_id=gone.partition_id, isr=[1, 2, 3])
            scene.apply([back])
    assert 1 not in scene.image.cluster.brokers
    assert not any(1 in scene.partition("orders", number).isr for number in range(PARTITIONS))


def test_a_topic_deleted_meanwhile_is_left_alone(scene: Scene) -> None:
    topic = scene.image.topics.by_name("orders")
    assert topic is not None
    sizes = []
    for piece in pieces(scene, fence_broker(scene.context, 1)):
        sizes.append(len(piece.records))
        if len(sizes) == 1:
            scene.apply([record("RemoveTopicRecord", topic_id=topic.id)])
    assert sizes == [PLACES_PER_PIECE, 0, 1]
    assert scene.image.cluster.brokers[1].fenced


@pytest.mark.spec("TOP-20")
def test_many_topics_are_created_so_many_at_a_time() -> None:
    """Names are compared with all topics that exist by then, of this request and others; no topic is split."""
    scene = Scene()
    names = [f"t-{number}" for number in range(2 * TOPICS_PER_PIECE)]
    request = create_request("a.b", *names, "a_b", "large", "last", partitions=1, factor=1)
    request.topics[-2].num_partitions = RECORDS_PER_PIECE
    taken: list[int] = []

    class Quota:
        def take(self, partitions: int) -> None:
            taken.append(partitions)

    context = replace(scene.context, mutations=Quota())  # type: ignore[arg-type]
    sizes: list[int] = []
    outcome = create_topics(context, request)
    for piece in pieces(scene, outcome):
        assert piece.atomic
        if not sizes:
            scene.run(create_topics, create_request(names[-1]))
        sizes.append(len(piece.records))
    assert sizes == [2 * TOPICS_PER_PIECE, 2 * TOPICS_PER_PIECE, 1 + RECORDS_PER_PIECE, 2]
    told = {topic.name: ErrorCode(topic.error_code) for topic in outcome.response.topics}
    assert list(told) == ["a.b", *names, "a_b", "large", "last"]
    refused = {name: code for name, code in told.items() if code is not ErrorCode.NONE}
    assert refused == {"a_b": ErrorCode.INVALID_TOPIC_EXCEPTION, names[-1]: ErrorCode.TOPIC_ALREADY_EXISTS}
    assert sum(taken) == len(told) - 3 + RECORDS_PER_PIECE
    there = {topic.name for topic in scene.image.topics.topics_by_id.values()}
    assert there == set(told) - {"a_b"}


@pytest.mark.spec("TOP-20")
def test_what_is_only_looked_at_is_compared_with_all_of_its_request() -> None:
    scene = Scene()
    names = [f"t-{number}" for number in range(TOPICS_PER_PIECE)]
    before = len(scene.history)
    result = scene.run(create_topics, create_request("a.b", *names, "a_b", validate_only=True))
    assert [topic.error_code for topic in result.topics] == [0] * (1 + len(names)) + [17]
    assert len(scene.history) == before
    request = create_request(*(f"u-{number}" for number in range(3 * TOPICS_PER_PIECE)), validate_only=True)
    made = list(pieces(scene, create_topics(scene.context, request)))
    assert [each.records for each in made] == [[]] * 3, "nobody waits for all of it"
    assert len(made[-1].response.topics) == 3 * TOPICS_PER_PIECE


@pytest.mark.spec("TOP-23")
def test_the_configs_of_many_topics_are_altered_so_many_at_a_time() -> None:
    """A topic that is deleted meanwhile is reported as unknown."""
    scene = Scene()
    names = [f"t-{number}" for number in range(RESOURCES_PER_PIECE + 3)]
    scene.run(create_topics, create_request(*names))
    kind = message("IncrementalAlterConfigsRequest")
    config = kind.AlterConfigsResource.AlterableConfig(name="retention.ms", config_operation=0, value="1000")
    resources = [kind.AlterConfigsResource(resource_type=2, resource_name=name, configs=[config]) for name in names]
    request = kind(resources=resources, validate_only=False)
    sizes: list[int] = []
    last = scene.image.topics.by_name(names[-1])
    assert last is not None
    outcome = incremental_alter_configs(scene.context, request)
    for piece in pieces(scene, outcome):
        if not sizes:
            scene.apply([record("RemoveTopicRecord", topic_id=last.id)])
        sizes.append(len(piece.records))
    assert sizes == [RESOURCES_PER_PIECE, 2]
    told = [ErrorCode(each.error_code) for each in outcome.response.responses]
    assert told == [ErrorCode.NONE] * (len(names) - 1) + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert all(scene.image.configs.of(2, name) == {"retention.ms": "1000"} for name in names[:-1])
    request.validate_only, config.value = True, "2000"
    made = list(pieces(scene, incremental_alter_configs(scene.context, request)))
    assert [each.records for each in made] == [[], []], "nor does anybody wait for what is only looked at"
    assert [ErrorCode(each.error_code) for each in made[-1].response.responses] == told
    assert scene.image.configs.of(2, names[0]) == {"retention.ms": "1000"}


@pytest.mark.spec("CLU-13")
def test_thousands_are_reassigned_and_elected_piece_by_piece(scene: Scene) -> None:
    kind = message("AlterPartitionReassignmentsRequest")
    of_topic = kind.ReassignableTopic
    asked = [of_topic.ReassignablePartition(partition_index=each, replicas=[2, 3, 1]) for each in range(PARTITIONS)]
    request = kind(topics=[of_topic(name="orders", partitions=asked)], timeout_ms=1000)
    outcome = alter_partition_reassignments(scene.context, request)
    sizes = [len(piece.records) for piece in pieces(scene, outcome)]
    assert sizes == [PLACES_PER_PIECE, PLACES_PER_PIECE, PARTITIONS - 2 * PLACES_PER_PIECE]
    [told] = outcome.response.responses
    assert [each.partition_index for each in told.partitions] == list(range(PARTITIONS))
    assert not any(each.error_code for each in told.partitions)

    outcome = elect_leaders(scene.context, message("ElectLeadersRequest")(election_type=0, topic_partitions=None))
    sizes = [len(piece.records) for piece in pieces(scene, outcome)]
    assert sizes == [PLACES_PER_PIECE, PLACES_PER_PIECE, PARTITIONS - 2 * PLACES_PER_PIECE]
    assert leaders(scene) == {2}
    [elected] = outcome.response.replica_election_results
    assert [each.partition_id for each in elected.partition_result] == list(range(PARTITIONS))


MANY = 2 * RECORDS_PER_PIECE
IN_PIECES = [RECORDS_PER_PIECE, RECORDS_PER_PIECE]


@pytest.mark.spec("TOP-01", "CLI-09")
def test_many_topics_are_expanded_so_many_at_a_time() -> None:
    """A topic that is deleted meanwhile is reported as unknown; too many are refused before any is expanded."""
    scene = Scene()
    names = [f"t-{number}" for number in range(RECORDS_PER_PIECE)]
    for name in names:
        scene.add_topic(name, [1])
    last = scene.image.topics.by_name(names[-1])
    assert last is not None
    kind = message("CreatePartitionsRequest")

    def asked(count: int, **options: Any) -> Any:
        topics = [kind.CreatePartitionsTopic(name=name, count=count, assignments=None) for name in names]
        return kind(topics=topics, timeout_ms=1000, validate_only=options.get("validate_only", False))

    with pytest.raises(ApiError, match="Excessively large number"):
        create_partitions(scene.context, asked(2 + MAX_RECORDS_PER_BATCH // len(names)))
    made = list(pieces(scene, create_partitions(scene.context, asked(3, validate_only=True))))
    assert [each.records for each in made] == [[], []], "nobody waits for all of what is only looked at"
    outcome = create_partitions(scene.context, asked(3))
    sizes: list[int] = []
    for piece in pieces(scene, outcome):
        assert piece.atomic
        if not sizes:
            scene.apply([record("RemoveTopicRecord", topic_id=last.id)])
        sizes.append(len(piece.records))
    assert sizes == [RECORDS_PER_PIECE, RECORDS_PER_PIECE - 2]
    told = [ErrorCode(each.error_code) for each in outcome.response.results]
    assert told == [ErrorCode.NONE] * (len(names) - 1) + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


@pytest.mark.spec("CLI-09")
def test_many_quotas_are_altered_so_many_at_a_time() -> None:
    scene = Scene()
    kind = message("AlterClientQuotasRequest")
    of_entry = kind.EntryData
    rate = of_entry.OpData(key="producer_byte_rate", value=1000.0, remove=False)
    entries = [
        of_entry(entity=[of_entry.EntityData(entity_type="user", entity_name=f"u-{number}")], ops=[rate])
        for number in range(MANY)
    ]
    outcome = alter_client_quotas(scene.context, kind(entries=[*entries, entries[0]], validate_only=False))
    assert [len(piece.records) for piece in pieces(scene, outcome)] == [*IN_PIECES, 0]
    assert [each.error_code for each in outcome.response.entries] == [0] * MANY + [ErrorCode.INVALID_REQUEST]
    assert len(scene.image.client_quotas.by_entity) == MANY


@pytest.mark.spec("CLI-09")
def test_many_users_get_their_credentials_so_many_at_a_time() -> None:
    scene = Scene()
    kind = message("AlterUserScramCredentialsRequest")
    upsertions = [
        kind.ScramCredentialUpsertion(
            name=f"u-{number}", mechanism=1, iterations=4096, salt=b"salt", salted_password=b"salted"
        )
        for number in range(MANY)
    ]
    outcome = alter_user_scram_credentials(scene.context, kind(deletions=[], upsertions=upsertions))
    assert [len(piece.records) for piece in pieces(scene, outcome)] == IN_PIECES
    assert [each.error_code for each in outcome.response.results] == [0] * MANY
    assert len(scene.image.security.scram_credentials) == MANY
