"""What handlers do with a request whose sender has no rights, or not all that it needs."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.broker.api.asking import APIS, Asker, Peer
from tests.broker.controller.scene import Scene
from tests.contract.compare import Case, build, corpus, plain

from ballast_broker.api.authorizer import AclAuthorizer, Operation, ResourceKind
from ballast_broker.api.client_quotas import REQUESTS, ClientQuotas
from ballast_broker.api.context import RequestContext
from ballast_broker.api.registry import handler_of
from ballast_broker.config.broker import broker_config
from ballast_broker.controller.service import COMMANDS
from ballast_broker.controller_requests import (
    CONTROLLER_APIS,
    FORWARDED,
    OF_ADMINS,
    OF_NODES,
    RAFT_KEYS,
    ControllerHandlers,
    is_of_nodes,
)
from ballast_broker.coordinator.transactions import created
from ballast_broker.metadata.acls import Acl, PatternType, Permission
from ballast_broker.metadata.delta import MetadataDelta
from ballast_broker.metadata.features import SUPPORTED
from ballast_broker.metadata.image import EMPTY_IMAGE
from ballast_broker.metadata.snapshot import acl_record
from ballast_broker.real_world import RealClock
from ballast_wire.envelope import Requester, enclose
from ballast_wire.error_codes import errors_in
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.failures import failure_response
from ballast_wire.messages import message

pytestmark = pytest.mark.spec("CLI-06")
REFUSALS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
}
# What is not about anything that one could have a right to: an id, a place, a name or a repetition that cannot be.
NOT_ABOUT_RIGHTS = {
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.INVALID_TOPIC_EXCEPTION,
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
}
# These leave out instead of refusing, or tell everybody.
TELLS_EVERYBODY = {"ApiVersions", "DescribeCluster", "SaslHandshake", "SaslAuthenticate"}
BY_HAND = {"Produce", "Fetch"}
STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def allow(kind: ResourceKind, name: str, operation: Operation, **more: Any) -> Acl:
    return Acl(kind, name, PatternType.LITERAL, "User:ANONYMOUS", "*", operation, Permission.ALLOW)._replace(**more)


def knowing(*acls: Acl) -> AclAuthorizer:
    authorizer = AclAuthorizer(frozenset(), allows_without_entry=False)
    delta = MetadataDelta(EMPTY_IMAGE)
    for number, acl in enumerate(acls):
        delta.replay(acl_record(uuid.UUID(int=5000 + number), acl))
    authorizer.publish(delta, delta.apply(0, 0))
    return authorizer


def topic_of(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []} | more


class Untouched:
    """A part of the broker that must not be used."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} is asked for what is not allowed")


def asked_of_nothing_allowed() -> Iterator[tuple[Case, int]]:
    for case in corpus("corpus_acls"):
        if case.file == "30-nothing-allowed" and case.api not in BY_HAND:
            yield from ((case, version) for version in case.versions)


def filled(value: Any, ids: dict[str, uuid.UUID]) -> Any:
    if isinstance(value, dict):
        return {name: filled(each, ids) for name, each in value.items()}
    if isinstance(value, list):
        return [filled(each, ids) for each in value]
    if isinstance(value, str) and value.startswith("$"):
        kind, _, name = value[1:].partition(":")
        return {"id": lambda: ids[name], "uuid": lambda: uuid.UUID(int=int(name))}.get(kind, name.encode)()
    return value


async def test_who_may_do_nothing_is_refused_everything_and_nothing_is_done() -> None:
    scene = Scene()
    ids = {name: scene.add_topic(name, [1]) for name in ("t1", "t2", "secret", "seen", "w1")}
    before = scene.history[:]
    asker = Asker(scene, replicas=Untouched(), authorizer=knowing(), **{"authorizer.class.name": STANDARD})
    asker.services.groups = SimpleNamespace(list_groups=lambda: [SimpleNamespace(group_id="g1")], consumers=Untouched())
    asker.services.next_producer_id = Untouched()
    asker.services.clock = RealClock()
    asker.services.transactions = SimpleNamespace(list_all=lambda: [created("x1", 5, 1000, 0)])
    refused = set()
    lists = ("topics", "groups", "results", "transaction_states")
    for case, version in asked_of_nothing_allowed():
        api = APIS[case.api]
        sent = build(message(case.api + "Request"), filled(case.request, ids), version)
        request = message(case.api + "Request").decode(sent.encode(version), version=version)
        context = RequestContext(asker.services, api.key, version, 1, "tests", Peer())
        try:
            response = await handler_of(api.module)(request, context)
        except ApiError as error:
            response = failure_response(case.api, request, version, error.code, error.message)
        kind = message(case.api + "Response")
        errors = {ErrorCode(each) for each in errors_in(response, version)}
        assert errors <= REFUSALS | NOT_ABOUT_RIGHTS, (case, version, errors)
        told = plain(kind.decode(response.encode(version=version), version=version), version)
        if errors & REFUSALS or [] in (told.get(each) for each in lists):
            refused.add(case.api)
        else:
            assert case.api in TELLS_EVERYBODY or errors & NOT_ABOUT_RIGHTS, (case, version)
    assert refused | TELLS_EVERYBODY | BY_HAND == set(APIS)
    assert scene.history == before
    assert asker.created == []


async def test_what_is_allowed_of_a_request_is_done() -> None:
    scene = Scene()
    may_create = (allow(ResourceKind.TOPIC, name, Operation.CREATE) for name in ("one", "two"))
    asker = Asker(scene, authorizer=knowing(*may_create, allow(ResourceKind.TOPIC, "two", Operation.DESCRIBE_CONFIGS)))
    topics = [topic_of(name) for name in ("one", "two", "three", "four", "four")]
    answer = await asker.ask("CreateTopics", 7, timeout_ms=1, validate_only=False, topics=topics)
    told = {each["name"]: (each["error_code"], each["num_partitions"]) for each in answer["topics"]}
    assert told == {
        "one": (ErrorCode.NONE, -1),  # how it is configured is not told
        "two": (ErrorCode.NONE, 1),
        "three": (ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1),
        "four": (ErrorCode.INVALID_REQUEST, -1),
    }
    assert scene.image.topics.sorted_names == ("one", "two")


async def test_a_topic_that_this_broker_does_not_know_yet_is_not_deleted_by_its_id() -> None:
    """The controller knows it, but does not check who may delete it."""
    scene = Scene()
    behind = scene.image
    secret = scene.add_topic("secret", [1])
    asker = Asker(scene, image=lambda: behind, authorizer=knowing(allow(ResourceKind.TOPIC, "mine", Operation.DELETE)))
    asked = [{"name": None, "topic_id": secret}, {"name": "secret", "topic_id": uuid.UUID(int=0)}]
    answer = await asker.ask("DeleteTopics", 6, timeout_ms=1, topics=asked)
    codes = sorted(each["error_code"] for each in answer["responses"])
    assert codes == [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_TOPIC_ID]
    assert scene.image.topics.by_name("secret") is not None


async def test_a_topic_is_made_automatically_for_who_may_create_it() -> None:
    asker = Asker(Scene(), authorizer=knowing(
        allow(ResourceKind.TOPIC, "*", Operation.DESCRIBE), allow(ResourceKind.TOPIC, "mine", Operation.CREATE)
    ))  # fmt: skip
    asked = [{"name": "mine"}, {"name": "theirs"}]
    answer = await asker.ask("Metadata", 9, topics=asked, allow_auto_topic_creation=True)
    told = {each["name"]: each["error_code"] for each in answer["topics"]}
    expected = {"mine": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "theirs": ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    assert told == expected
    assert asker.created == ["mine"]


async def test_entries_are_created_once_and_deleted_by_what_they_say() -> None:
    scene = Scene(has_authorizer=True)
    asker = Asker(scene, authorizer=knowing(allow(ResourceKind.CLUSTER, "kafka-cluster", Operation.ALTER)))
    wanted: dict[str, Any] = {
        "resource_type": 2, "resource_name": "orders", "resource_pattern_type": 3,
        "principal": "User:ann", "host": "*", "operation": 3, "permission_type": 3,
    }  # fmt: skip
    wrong: list[dict[str, Any]] = [{"resource_name": ""}, {"resource_type": 4}, {"operation": 99}, {"principal": "ann"}]
    for _ in range(2):
        answer = await asker.ask("CreateAcls", 3, creations=[wanted, wanted, *(wanted | each for each in wrong)])
        codes = [each["error_code"] for each in answer["results"]]
        assert codes == [0, 0] + [ErrorCode.INVALID_REQUEST] * len(wrong)
    assert len(scene.image.security.acls) == 1
    of_orders = {
        "resource_type_filter": 1, "resource_name_filter": "orders", "pattern_type_filter": 1,
        "principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1,
    }  # fmt: skip
    answer = await asker.ask("DeleteAcls", 3, filters=[of_orders | {"operation": 4}, of_orders, of_orders])
    assert [len(each["matching_acls"]) for each in answer["filter_results"]] == [0, 1, 1]
    assert len(scene.image.security.acls) == len(scene.image.security.acl_ids) == 0


async def test_without_an_authorizer_there_are_no_entries_to_change() -> None:
    asker = Asker(Scene())
    creation = {"resource_type": 2, "resource_name": "t", "principal": "User:a", "host": "*", "operation": 3}
    answer = await asker.ask("CreateAcls", 3, creations=[creation | {"permission_type": 3}])
    assert [each["error_code"] for each in answer["results"]] == [ErrorCode.SECURITY_DISABLED]


def test_more_entries_than_fit_into_one_batch_are_refused_as_a_whole() -> None:
    scene, creating, deleting = Scene(has_authorizer=True), message("CreateAclsRequest"), message("DeleteAclsRequest")
    creation = {"resource_type": 2, "principal": "User:a", "host": "*", "operation": 3, "permission_type": 3}
    many = [creating.AclCreation(resource_name=f"t{number}", **creation) for number in range(10_001)]
    create_acls, delete_acls = COMMANDS[30][1], COMMANDS[31][1]
    with pytest.raises(ApiError, match="Unable to perform excessively large batch operation") as refused:
        create_acls(scene.context, creating(creations=many))
    assert refused.value.code is ErrorCode.POLICY_VIOLATION
    scene.run(create_acls, creating(creations=many[1:]))
    scene.run(create_acls, creating(creations=many[:2]))
    assert len(scene.image.security.acls) == len(many)
    everything = deleting.DeleteAclsFilter(
        resource_type_filter=1, resource_name_filter=None, pattern_type_filter=1, principal_filter=None,
        host_filter=None, operation=1, permission_type=1,
    )  # fmt: skip
    with pytest.raises(ApiError, match="Cannot remove more than 10000 acls") as refused:
        delete_acls(scene.context, deleting(filters=[everything]))
    assert refused.value.code is ErrorCode.INVALID_REQUEST


async def test_filters_that_would_hold_up_the_controller_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ballast_broker.controller.commands.acls.MOST_LOOKED_AT", 3)
    scene = Scene(has_authorizer=True)
    for number in range(2):
        scene.apply([acl_record(uuid.UUID(int=5000 + number), allow(ResourceKind.TOPIC, f"t{number}", Operation.READ))])
    request = message("DeleteAclsRequest")
    wide = request.DeleteAclsFilter(
        resource_type_filter=2, resource_name_filter=None, pattern_type_filter=1, principal_filter=None,
        host_filter=None, operation=1, permission_type=1,
    )  # fmt: skip
    delete_acls = COMMANDS[31][1]
    with pytest.raises(ApiError, match="2 filters") as refused:
        delete_acls(scene.context, request(filters=[wide, wide]))
    assert refused.value.code is ErrorCode.POLICY_VIOLATION
    assert len(scene.run(delete_acls, request(filters=[wide])).filter_results[0].matching_acls) == 2


# -- a controller's listener ------------------------------------------------------------------------------------------
ENVELOPED = Requester("ann", "app", "/10.0.0.1")


class Controlling:
    """A controller's handlers, before a quorum and a service that note what they are asked."""

    def __init__(self, *acls: Acl) -> None:
        self.asked: list[int] = []
        self.askers: list[Any] = []
        self.scene = Scene()
        quotas = ClientQuotas(RealClock())
        self.services: Any = SimpleNamespace(
            authorizer=knowing(*acls),
            image=lambda: self.scene.image,
            client_quotas=quotas,
            node_id=1,
            config=broker_config({"node.id": "1"}),
        )
        quorum = SimpleNamespace(endpoints={})
        driver: Any = SimpleNamespace(handle=self._handle_of_quorum, quorum=quorum, leader_id=1, kraft_version=1)
        service: Any = SimpleNamespace(handle=self._handle)
        self._handlers = ControllerHandlers(driver, service, lambda: self.scene.image, "cluster", quotas, lambda: 0.0)

    async def _handle(self, api_key: int, version: int, request: Any, context: Any = None, asker: Any = None) -> Any:
        self.asked.append(api_key)
        self.askers.append(asker)
        return message(CONTROLLER_APIS[api_key].name + "Response")(version=version)

    async def _handle_of_quorum(self, api_key: int, request: Any) -> Any:
        return await self._handle(api_key, request.API_VERSION, request)

    async def versions(self, version: int | None) -> Any:
        """None: one that it does not know, of which the dispatcher hands on no request."""
        request = None if version is None else message("ApiVersionsRequest")(version=version)
        context = RequestContext(self.services, 18, 5 if version is None else version, 1, "tests", Peer())
        return await self._handlers.of(CONTROLLER_APIS[18])(request, context)

    async def ask(self, api_key: int, **fields: Any) -> set[ErrorCode]:
        api = CONTROLLER_APIS[api_key]
        kind = message(api.name + "Request")
        if api.name == "UpdateRaftVoter":  # the codec has no default of a struct
            fields["k_raft_version_feature"] = kind.KRaftVersionFeature()
        request = kind(version=api.highest, **fields)
        context = RequestContext(self.services, api_key, api.highest, 1, "tests", Peer())
        try:
            response = await self._handlers.of(api)(request, context)
        except ApiError as error:
            return {error.code}
        return {ErrorCode(each) for each in errors_in(response, api.highest)}


@pytest.mark.parametrize("api_key", sorted(OF_NODES | RAFT_KEYS))
async def test_nodes_alone_may_ask_a_controller_for_what_nodes_need(api_key: int) -> None:
    others = (Operation.CREATE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS, Operation.IDEMPOTENT_WRITE)
    controller = Controlling(*(allow(ResourceKind.CLUSTER, "kafka-cluster", each) for each in others))
    assert await controller.ask(api_key) == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
    assert controller.asked == []
    for needed in {OF_ADMINS.get(api_key, Operation.CLUSTER_ACTION), Operation.CLUSTER_ACTION}:
        controller = Controlling(allow(ResourceKind.CLUSTER, "kafka-cluster", needed))
        assert await controller.ask(api_key) == set()
        assert controller.asked == [api_key]


async def test_a_controller_asks_who_is_no_node_what_he_may_do_and_trusts_nodes() -> None:
    topics = [message("CreateTopicsRequest").CreatableTopic(**topic_of("orders"))]
    stranger = Controlling(allow(ResourceKind.CLUSTER, "kafka-cluster", Operation.DESCRIBE))
    assert await stranger.ask(19, topics=topics) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    assert stranger.asked == []
    client = Controlling(allow(ResourceKind.TOPIC, "orders", Operation.CREATE))
    assert await client.ask(19, topics=topics) == set()
    node = Controlling(allow(ResourceKind.CLUSTER, "kafka-cluster", Operation.CLUSTER_ACTION))
    assert await node.ask(19, topics=topics) == set()  # what it forwards, it has looked at
    assert client.asked == node.asked == [19]


@pytest.mark.parametrize(
    ("operation", "refusal"),
    [(Operation.CLUSTER_ACTION, None), (Operation.ALTER_CONFIGS, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)],
)
async def test_a_controllers_loggers_are_its_own_also_while_another_one_is_active(
    operation: Operation, refusal: ErrorCode | None
) -> None:
    kind = message("IncrementalAlterConfigsRequest").AlterConfigsResource
    change = kind.AlterableConfig(name="ballast_broker.tests.controlled", config_operation=0, value="DEBUG")
    loggers = kind(resource_type=8, resource_name="1", configs=[change])
    logger = logging.getLogger(change.name)
    controller = Controlling(allow(ResourceKind.CLUSTER, "kafka-cluster", operation))
    try:
        assert await controller.ask(44, resources=[loggers]) == (set() if refusal is None else {refusal})
        assert logger.level == (logging.DEBUG if refusal is None else logging.NOTSET)
    finally:
        logger.setLevel(logging.NOTSET)
    assert controller.asked == []


@pytest.mark.parametrize(
    ("request_name", "version", "refusal"),
    [
        ("CreateTopics", 7, None),
        ("ListPartitionReassignments", 0, None),
        ("BrokerHeartbeat", 1, ErrorCode.INVALID_REQUEST),  # a node's own
        ("Metadata", 12, ErrorCode.INVALID_REQUEST),
        ("CreateTopics", 1, ErrorCode.UNSUPPORTED_VERSION),
    ],
)
async def test_what_a_node_may_send_on_for_others(request_name: str, version: int, refusal: ErrorCode | None) -> None:
    node = Controlling(allow(ResourceKind.CLUSTER, "kafka-cluster", Operation.CLUSTER_ACTION))
    inner = message(request_name + "Request")(version=version)
    sent = enclose(inner, version, ENVELOPED)
    fields = {name: getattr(sent, name) for name in ("request_data", "request_principal", "client_host_address")}
    assert await node.ask(58, **fields) == (set() if refusal is None else {refusal})
    assert node.asked == ([inner.API_KEY] if refusal is None else [])
    assert node.askers == ([ENVELOPED] if refusal is None else [])


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4, 5])
async def test_a_controller_says_what_it_takes_in_all_versions(version: int) -> None:
    """With features since version 3; an unknown version is answered in version 0."""
    known = version <= CONTROLLER_APIS[18].highest
    response = await Controlling().versions(version if known else None)
    told = response.version
    assert told == (version if known else 0)
    assert response.error_code == (ErrorCode.NONE if known else ErrorCode.UNSUPPORTED_VERSION)
    again = type(response).decode(bytes(response.encode(version=told)), version=told)
    assert {each.api_key for each in again.api_keys} == CONTROLLER_APIS.keys()
    shown = {each.name: (each.min_version, each.max_version) for each in again.supported_features or []}
    assert shown == (SUPPORTED if told >= 3 else {})


@pytest.mark.spec("CLI-11")
@pytest.mark.parametrize("api_key", sorted(FORWARDED))
async def test_whatever_is_sent_on_is_answered_to_who_has_a_quota_of_time(api_key: int) -> None:
    """Also if the response has no field for the throttle time."""
    api = CONTROLLER_APIS[api_key]
    for version in (api.lowest, api.highest):
        node = Controlling(allow(ResourceKind.CLUSTER, "kafka-cluster", Operation.CLUSTER_ACTION))
        node.services.client_quotas.requests.change({(("client-id", ENVELOPED.client_id),): {REQUESTS: 50.0}})
        sent = enclose(message(api.name + "Request")(version=version), version, ENVELOPED)
        fields = {name: getattr(sent, name) for name in ("request_data", "request_principal", "client_host_address")}
        assert await node.ask(58, **fields) == set()
        assert node.askers == [ENVELOPED]


@pytest.mark.parametrize(
    ("api_key", "client_id", "operation", "exempt"),
    [
        (63, "any", Operation.DESCRIBE, True),  # a heartbeat: it is refused, or a node's
        (19, "broker-1", Operation.CLUSTER_ACTION, True),
        (19, "broker-1", Operation.CREATE, False),
        (19, "broker-x", Operation.CLUSTER_ACTION, False),
        (55, "admin", Operation.CLUSTER_ACTION, False),
    ],
)
def test_whose_requests_no_quota_of_a_controller_holds_up(
    api_key: int, client_id: str, operation: Operation, exempt: bool
) -> None:
    services = Controlling(allow(ResourceKind.CLUSTER, "kafka-cluster", operation)).services
    assert is_of_nodes(RequestContext(services, api_key, 0, 1, client_id, Peer())) is exempt


async def test_every_request_that_a_controller_answers_takes_a_right() -> None:
    told = {17, 18, 36}  # ApiVersions, and authentication itself
    for api_key in CONTROLLER_APIS.keys() - told:
        controller = Controlling()
        every: dict[int, dict[str, Any]] = {
            29: {"resource_type_filter": 1, "operation": 1, "permission_type": 1},
            19: {"topics": [message("CreateTopicsRequest").CreatableTopic(**topic_of("t"))]},
            20: {"topics": [message("DeleteTopicsRequest").DeleteTopicState(name="t", topic_id=uuid.UUID(int=0))]},
            32: {"resources": [message("DescribeConfigsRequest").DescribeConfigsResource(
                resource_type=4, resource_name="1", configuration_keys=None)]},
            33: {"resources": [message("AlterConfigsRequest").AlterConfigsResource(
                resource_type=2, resource_name="t", configs=[])]},
            37: {"topics": [message("CreatePartitionsRequest").CreatePartitionsTopic(name="t", count=2)]},
            44: {"resources": [message("IncrementalAlterConfigsRequest").AlterConfigsResource(
                resource_type=4, resource_name="1", configs=[])]},
        }  # fmt: skip
        assert await controller.ask(api_key, **every.get(api_key, {})) & REFUSALS, CONTROLLER_APIS[api_key].name
        assert controller.asked == []


def test_the_authorizer_is_configured_or_refused() -> None:
    with_it = {"node.id": "1", "authorizer.class.name": STANDARD}
    assert broker_config(with_it | {"super.users": "User:a; User:b"}).super_users == {"User:a", "User:b"}
    for wrong, said in (
        ({"authorizer.class.name": "com.example.Mine"}, "authorizer.class.name: String must be empty or org.apache"),
        ({"super.users": "a"}, "super.users: Value must be principals as User:NAME"),
    ):
        with pytest.raises(ValueError, match=said):
            broker_config(with_it | wrong)
    (warning,) = broker_config({"node.id": "1", "super.users": "User:a"}).warnings
    assert warning == "property super.users has no effect without authorizer.class.name"
