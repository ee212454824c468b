"""What a controller's listener answers: the quorum's own requests, the controller's, and who it is.

Admin clients may come here directly (`--bootstrap-controller`); they find what Kafka's controllers answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ballast_broker.api.context import RequestContext
from ballast_broker.api.registry import Api, Handler
from ballast_broker.controller.service import API_KEYS, ControllerService
from ballast_broker.metadata.features import KRAFT_VERSION, SUPPORTED
from ballast_broker.metadata.image import MetadataImage
from ballast_broker.raft.driver import RaftDriver
from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message

API_VERSIONS, DESCRIBE_CLUSTER = 18, 60
RAFT_KEYS = frozenset({1, 52, 53, 54, 55, 59, 80, 81, 82})


def _api(key: int, name: str, lowest: int, highest: int) -> Api:
    return Api(key, name, lowest, highest, "")


CONTROLLER_APIS = {
    api.key: api
    for api in (
        _api(1, "Fetch", 17, 17),
        _api(API_VERSIONS, "ApiVersions", 0, 4),
        _api(19, "CreateTopics", 2, 7),
        _api(20, "DeleteTopics", 1, 6),
        _api(33, "AlterConfigs", 0, 2),
        _api(37, "CreatePartitions", 0, 3),
        _api(43, "ElectLeaders", 0, 2),
        _api(44, "IncrementalAlterConfigs", 0, 1),
        _api(45, "AlterPartitionReassignments", 0, 1),
        _api(46, "ListPartitionReassignments", 0, 0),
        _api(49, "AlterClientQuotas", 0, 1),
        _api(52, "Vote", 0, 2),
        _api(53, "BeginQuorumEpoch", 0, 1),
        _api(54, "EndQuorumEpoch", 0, 1),
        _api(55, "DescribeQuorum", 0, 2),
        _api(56, "AlterPartition", 2, 3),
        _api(57, "UpdateFeatures", 0, 2),
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


class ControllerHandlers:
    def __init__(
        self, driver: RaftDriver, service: ControllerService, image: Callable[[], MetadataImage], cluster_id: str
    ) -> None:
        self._driver = driver
        self._service = service
        self._image = image
        self._cluster_id = cluster_id

    def of(self, api: Api) -> Handler:
        if api.key in RAFT_KEYS:
            return self._raft
        if api.key in API_KEYS:
            return self._controller
        return self._versions if api.key == API_VERSIONS else self._cluster

    async def _raft(self, request: Any, context: RequestContext) -> Any:
        return await self._driver.handle(context.api_key, context.version, request)

    async def _controller(self, request: Any, context: RequestContext) -> Any:
        return await self._service.handle(context.api_key, context.version, request, context)

    async def _versions(self, request: Any, context: RequestContext) -> Any:
        kind = message("ApiVersionsResponse")
        known = request is not None
        version = context.version if known else 0
        image = self._image()
        return kind(
            version=version,
            error_code=ErrorCode.NONE if known else ErrorCode.UNSUPPORTED_VERSION,
            api_keys=[
                kind.ApiVersion(version=version, api_key=a.key, min_version=a.lowest, max_version=a.highest)
                for a in CONTROLLER_APIS.values()
            ],
            supported_features=[
                kind.SupportedFeatureKey(version=version, name=name, min_version=low, max_version=high)
                for name, (low, high) in SUPPORTED.items()
            ],
            finalized_features_epoch=image.offset,
            finalized_features=[
                kind.FinalizedFeatureKey(version=version, name=name, max_version_level=level, min_version_level=level)
                for name, level in (*image.features.levels.items(), (KRAFT_VERSION, self._driver.kraft_version))
                if level > 0
            ],
        )

    async def _cluster(self, request: Any, context: RequestContext) -> Any:
        kind = message("DescribeClusterResponse")
        version = context.version
        wants_controllers = getattr(request, "endpoint_type", 1) == 2
        if not wants_controllers:
            text = "The request was sent to an endpoint of type CONTROLLER, but we wanted an endpoint of type BROKER"
            return kind(
                version=version,
                error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
                error_message=text,
                cluster_id=self._cluster_id,
                brokers=[],
            )
        nodes = [
            kind.DescribeClusterBroker(version=version, broker_id=node_id, host=e.host, port=e.port, rack=None)
            for node_id, e in self._driver.voter_endpoints()
        ]
        return kind(
            version=version,
            error_code=ErrorCode.NONE,
            endpoint_type=2,
            cluster_id=self._cluster_id,
            controller_id=self._driver.leader_id,
            brokers=nodes,
        )
