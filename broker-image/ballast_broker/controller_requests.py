"""Handles requests on a controller's listener: quorum RPCs, controller requests, and self-description.

Admin clients may connect directly (`--bootstrap-controller`) and get what Kafka's controllers answer. Nodes have
CLUSTER_ACTION, and what brokers forward they have authorized already; everybody else is authorized here.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

from ballast_broker.api import alter_configs, delegation_tokens, describe_acls, describe_configs, sasl
from ballast_broker.api.authorizer import CLUSTER, Operation
from ballast_broker.api.client_quotas import ClientQuotas
from ballast_broker.api.context import RequestContext
from ballast_broker.api.permissions import ask_for_what_is_allowed, check_cluster
from ballast_broker.api.registry import Api, Handler
from ballast_broker.api.request_time import RequestTime, Timed
from ballast_broker.controller.error_responses import is_not_controller
from ballast_broker.controller.service import API_KEYS, ControllerService
from ballast_broker.metadata.features import KRAFT_VERSION, SUPPORTED
from ballast_broker.metadata.image import MetadataImage
from ballast_broker.raft.driver import RaftDriver
from ballast_wire.envelope import API_KEY as ENVELOPE
from ballast_wire.envelope import Enclosed, Requester, disclose, enclose_answer, refusal
from ballast_wire.errors import ErrorCode
from ballast_wire.fast.reader import MalformedRequest
from ballast_wire.messages import message

logger = logging.getLogger(__name__)

API_VERSIONS, DESCRIBE_CLUSTER = 18, 60
SASL_KEYS = frozenset({17, 36})
DESCRIBE_ACLS, DESCRIBE_CONFIGS, DESCRIBE_QUORUM = 29, 32, 55
INCREMENTAL_ALTER_CONFIGS = 44
ADD_VOTER, REMOVE_VOTER, UPDATE_VOTER = 80, 81, 82
RAFT_KEYS = frozenset({1, 52, 53, 54, DESCRIBE_QUORUM, 59, ADD_VOTER, REMOVE_VOTER, UPDATE_VOTER})
# Quorum requests that administrators may send, and the operation required.
OF_ADMINS = {DESCRIBE_QUORUM: Operation.DESCRIBE, ADD_VOTER: Operation.ALTER, REMOVE_VOTER: Operation.ALTER}
# Requests only nodes send to a controller.
OF_NODES = frozenset({56, 62, 63, 67, 70, 73})
# Requests bound to the requester's identity: brokers forward them in envelopes.
OF_TOKENS = frozenset({38, 39, 40})
FEATURES_SINCE = 3  # of ApiVersions
# Client ids that nodes of the cluster use (`SocketNetwork`): their requests are exempt from quotas.
NODE_NAME = re.compile(r"broker-\d+")


def _api(key: int, name: str, lowest: int, highest: int) -> Api:
    return Api(key, name, lowest, highest, "")


CONTROLLER_APIS = {
    api.key: api
    for api in (
        _api(1, "Fetch", 17, 17),
        _api(17, "SaslHandshake", 0, 1),
        _api(API_VERSIONS, "ApiVersions", 0, 4),
        _api(19, "CreateTopics", 2, 7),
        _api(20, "DeleteTopics", 1, 6),
        _api(DESCRIBE_ACLS, "DescribeAcls", 1, 3),
        _api(30, "CreateAcls", 1, 3),
        _api(31, "DeleteAcls", 1, 3),
        _api(DESCRIBE_CONFIGS, "DescribeConfigs", 1, 4),
        _api(33, "AlterConfigs", 0, 2),
        _api(36, "SaslAuthenticate", 0, 2),
        _api(37, "CreatePartitions", 0, 3),
        _api(38, "CreateDelegationToken", 1, 3),
        _api(39, "RenewDelegationToken", 1, 2),
        _api(40, "ExpireDelegationToken", 1, 2),
        _api(43, "ElectLeaders", 0, 2),
        _api(INCREMENTAL_ALTER_CONFIGS, "IncrementalAlterConfigs", 0, 1),
        _api(45, "AlterPartitionReassignments", 0, 1),
        _api(46, "ListPartitionReassignments", 0, 0),
        _api(49, "AlterClientQuotas", 0, 1),
        _api(51, "AlterUserScramCredentials", 0, 0),
        _api(52, "Vote", 0, 2),
        _api(53, "BeginQuorumEpoch", 0, 1),
        _api(54, "EndQuorumEpoch", 0, 1),
        _api(DESCRIBE_QUORUM, "DescribeQuorum", 0, 2),
        _api(56, "AlterPartition", 2, 3),
        _api(57, "UpdateFeatures", 0, 2),
        _api(ENVELOPE, "Envelope", 0, 0),
        _api(59, "FetchSnapshot", 0, 1),
        _api(DESCRIBE_CLUSTER, "DescribeCluster", 0, 2),
        _api(62, "BrokerRegistration", 0, 4),
        _api(63, "BrokerHeartbeat", 0, 1),
        _api(64, "UnregisterBroker", 0, 0),
        _api(67, "AllocateProducerIds", 0, 0),
        _api(70, "ControllerRegistration", 0, 0),
        _api(73, "AssignReplicasToDirs", 0, 0),
        _api(80, "AddRaftVoter", 0, 0),
        _api(81, "RemoveRaftVoter", 0, 0),
        _api(82, "UpdateRaftVoter", 0, 0),
    )
}

# Requests that brokers forward for others.
FORWARDED = {key: CONTROLLER_APIS[key].name for key in API_KEYS - OF_NODES}


def is_of_nodes(context: RequestContext) -> bool:
    """Whether a node of the cluster sent it on its own behalf, exempt from quotas; an envelope names its requester."""
    if context.api_key in OF_NODES or context.api_key in RAFT_KEYS - OF_ADMINS.keys() or context.api_key == ENVELOPE:
        return True
    return NODE_NAME.fullmatch(context.client_id or "") is not None and context.may(Operation.CLUSTER_ACTION, CLUSTER)


class ControllerHandlers:
    def __init__(
        self,
        driver: RaftDriver,
        service: ControllerService,
        image: Callable[[], MetadataImage],
        cluster_id: str,
        quotas: ClientQuotas,
        now: Callable[[], float],
    ) -> None:
        self._driver = driver
        self._service = service
        self._image = image
        self._cluster_id = cluster_id
        self._quotas = quotas
        self._now = now

    def of(self, api: Api) -> Handler:
        if api.key in RAFT_KEYS:
            return self._raft
        if api.key in OF_TOKENS:
            return self._token
        if api.key == INCREMENTAL_ALTER_CONFIGS:
            return self._configs
        if api.key in API_KEYS:
            return self._controller
        if api.key == ENVELOPE:
            return self._envelope
        if api.key in SASL_KEYS:
            return sasl.handle
        if api.key == DESCRIBE_ACLS:
            return describe_acls.handle
        if api.key == DESCRIBE_CONFIGS:
            return describe_configs.handle
        return self._versions if api.key == API_VERSIONS else self._cluster

    async def _raft(self, request: Any, context: RequestContext) -> Any:
        operation = OF_ADMINS.get(context.api_key)
        if operation is None:
            check_cluster(Operation.CLUSTER_ACTION, context)
        elif not context.may(Operation.CLUSTER_ACTION, CLUSTER):  # otherwise a broker has authorized it
            check_cluster(operation, context)
        return await self._driver.handle(context.api_key, request)

    async def _controller(self, request: Any, context: RequestContext) -> Any:
        asker = None if is_of_nodes(context) else context.asker

        async def ask(allowed: Any) -> Any:
            return await self._service.handle(context.api_key, context.version, allowed, context, asker)

        if context.api_key in OF_NODES:
            check_cluster(Operation.CLUSTER_ACTION, context)
        elif not context.may(Operation.CLUSTER_ACTION, CLUSTER):
            return await ask_for_what_is_allowed(request, context, ask)
        return await ask(request)

    async def _configs(self, request: Any, context: RequestContext) -> Any:
        async def ask(rest: Any) -> Any:
            return await self._controller(rest, context)

        return await alter_configs.handle_at_controller(request, context, ask)

    async def _token(self, request: Any, context: RequestContext) -> Any:
        async def ask(allowed: Any, asker: Requester) -> Any:
            return await self._service.handle(context.api_key, context.version, allowed, context, asker)

        return await delegation_tokens.ask_if_allowed(request, context, ask)

    async def _envelope(self, request: Any, context: RequestContext) -> Any:
        """Handle a forwarded request, which the broker has authorized already."""
        if not context.authorize(Operation.CLUSTER_ACTION, CLUSTER):
            return refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        try:
            enclosed = disclose(request, FORWARDED)
        except MalformedRequest as error:
            logger.info("a forwarded request from %s cannot be read: %s", context.host, error)
            return refusal(ErrorCode.INVALID_REQUEST)
        api = CONTROLLER_APIS[enclosed.request.API_KEY]
        if not api.lowest <= enclosed.version <= api.highest:
            return refusal(ErrorCode.UNSUPPORTED_VERSION)
        response = await self._answer(api, enclosed)
        if is_not_controller(response):
            return refusal(ErrorCode.NOT_CONTROLLER)
        return enclose_answer(enclosed, response)

    async def _answer(self, api: Api, enclosed: Enclosed) -> Any:
        """Handle the request; its time is charged to the requester, whom the broker throttles."""
        asker = enclosed.asker
        work = self._service.handle(api.key, enclosed.version, enclosed.request, None, asker)
        rate = self._quotas.requests.rate_of(asker.user, asker.client_id)
        if rate is None:
            return await work
        time = RequestTime(self._quotas.requests, rate, self._now, None)
        response = await Timed(work, time)
        if hasattr(response, "throttle_time_ms"):  # DescribeQuorum's response lacks it
            response.throttle_time_ms = max(response.throttle_time_ms, time.tell_ms())
        return response

    async def _versions(self, request: Any, context: RequestContext) -> Any:
        kind = message("ApiVersionsResponse")
        known = request is not None
        version = context.version if known else 0
        return kind(
            version=version,
            error_code=ErrorCode.NONE if known else ErrorCode.UNSUPPORTED_VERSION,
            api_keys=[
                kind.ApiVersion(api_key=a.key, min_version=a.lowest, max_version=a.highest)
                for a in CONTROLLER_APIS.values()
            ],
            **(self._features(kind) if version >= FEATURES_SINCE else {}),
        )

    def _features(self, kind: Any) -> dict[str, Any]:
        """Version 3 includes features with lowest level 0 as well: nodes look for kraft.version there."""
        image = self._image()
        supported = [
            kind.SupportedFeatureKey(name=name, min_version=low, max_version=high)
            for name, (low, high) in SUPPORTED.items()
        ]
        finalized = [
            kind.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in (*image.features.levels.items(), (KRAFT_VERSION, self._driver.kraft_version))
            if level > 0
        ]
        return {
            "supported_features": supported,
            "finalized_features_epoch": image.offset,
            "finalized_features": finalized,
        }

    async def _cluster(self, request: Any, context: RequestContext) -> Any:
        check_cluster(Operation.ALTER, context)
        kind = message("DescribeClusterResponse")
        wants_controllers = getattr(request, "endpoint_type", 1) == 2
        if not wants_controllers:
            text = "The request was sent to an endpoint of type CONTROLLER, but we wanted an endpoint of type BROKER"
            return kind(
                error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
                error_message=text,
                cluster_id=self._cluster_id,
                brokers=[],
            )
        nodes = [
            kind.DescribeClusterBroker(broker_id=node_id, host=e.host, port=e.port, rack=None)
            for node_id, e in self._driver.voter_endpoints()
        ]
        return kind(
            error_code=ErrorCode.NONE,
            endpoint_type=2,
            cluster_id=self._cluster_id,
            controller_id=self._driver.leader_id,
            brokers=nodes,
        )
