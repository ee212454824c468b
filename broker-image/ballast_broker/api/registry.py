"""The APIs this broker serves: one module per API key; the advertised versions follow from them.

A module has `async def handle(request, context) -> response`. It is imported at first use, so that a broker that nobody
administers never loads the administrative APIs. Produce and Fetch are called by the dispatcher directly; they are
listed here to be advertised.
"""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, NamedTuple

from ballast_broker.api.context import RequestContext

Handler = Callable[[Any, RequestContext], Awaitable[Any]]


class Api(NamedTuple):
    key: int
    name: str  # as in message names: "Metadata" for MetadataRequest
    lowest: int
    highest: int
    module: str


def _api(key: int, name: str, lowest: int, highest: int, module: str) -> Api:
    return Api(key, name, lowest, highest, f"ballast_broker.api.{module}")


BROKER_APIS = {
    api.key: api
    for api in (
        _api(0, "Produce", 0, 13, "produce"),
        _api(1, "Fetch", 4, 18, "fetch"),
        _api(2, "ListOffsets", 1, 11, "list_offsets"),
        _api(3, "Metadata", 0, 13, "metadata"),
        _api(8, "OffsetCommit", 2, 10, "offset_commit"),
        _api(9, "OffsetFetch", 1, 10, "offset_fetch"),
        _api(10, "FindCoordinator", 0, 6, "find_coordinator"),
        _api(11, "JoinGroup", 0, 9, "join_group"),
        _api(12, "Heartbeat", 0, 4, "heartbeat"),
        _api(13, "LeaveGroup", 0, 5, "leave_group"),
        _api(14, "SyncGroup", 0, 5, "sync_group"),
        _api(15, "DescribeGroups", 0, 6, "describe_groups"),
        _api(16, "ListGroups", 0, 5, "list_groups"),
        _api(17, "SaslHandshake", 0, 1, "sasl"),
        _api(18, "ApiVersions", 0, 4, "api_versions"),
        _api(19, "CreateTopics", 2, 7, "forwarded"),
        _api(20, "DeleteTopics", 1, 6, "forwarded"),
        _api(21, "DeleteRecords", 0, 2, "delete_records"),
        _api(22, "InitProducerId", 0, 5, "init_producer_id"),
        _api(23, "OffsetForLeaderEpoch", 2, 4, "offset_for_leader_epoch"),
        _api(24, "AddPartitionsToTxn", 0, 5, "add_partitions_to_txn"),
        _api(25, "AddOffsetsToTxn", 0, 4, "add_offsets_to_txn"),
        _api(26, "EndTxn", 0, 5, "end_txn"),
        _api(27, "WriteTxnMarkers", 1, 2, "write_txn_markers"),
        _api(28, "TxnOffsetCommit", 0, 5, "txn_offset_commit"),
        _api(29, "DescribeAcls", 1, 3, "describe_acls"),
        _api(30, "CreateAcls", 1, 3, "alter_acls"),
        _api(31, "DeleteAcls", 1, 3, "alter_acls"),
        _api(32, "DescribeConfigs", 1, 4, "describe_configs"),
        _api(33, "AlterConfigs", 0, 2, "alter_configs"),
        _api(34, "AlterReplicaLogDirs", 1, 2, "alter_replica_log_dirs"),
        _api(35, "DescribeLogDirs", 1, 5, "describe_log_dirs"),
        _api(36, "SaslAuthenticate", 0, 2, "sasl"),
        _api(37, "CreatePartitions", 0, 3, "forwarded"),
        _api(38, "CreateDelegationToken", 1, 3, "delegation_tokens"),
        _api(39, "RenewDelegationToken", 1, 2, "delegation_tokens"),
        _api(40, "ExpireDelegationToken", 1, 2, "delegation_tokens"),
        _api(41, "DescribeDelegationToken", 1, 3, "describe_delegation_token"),
        _api(42, "DeleteGroups", 0, 2, "delete_groups"),
        _api(43, "ElectLeaders", 0, 2, "forwarded"),
        _api(44, "IncrementalAlterConfigs", 0, 1, "alter_configs"),
        _api(45, "AlterPartitionReassignments", 0, 1, "forwarded"),
        _api(46, "ListPartitionReassignments", 0, 0, "forwarded"),
        _api(47, "OffsetDelete", 0, 0, "offset_delete"),
        _api(48, "DescribeClientQuotas", 0, 1, "describe_client_quotas"),
        _api(49, "AlterClientQuotas", 0, 1, "forwarded"),
        _api(50, "DescribeUserScramCredentials", 0, 0, "describe_user_scram_credentials"),
        _api(51, "AlterUserScramCredentials", 0, 0, "forwarded"),
        _api(55, "DescribeQuorum", 0, 2, "forwarded"),
        _api(57, "UpdateFeatures", 0, 2, "forwarded"),
        _api(60, "DescribeCluster", 0, 2, "describe_cluster"),
        _api(61, "DescribeProducers", 0, 0, "describe_producers"),
        _api(64, "UnregisterBroker", 0, 0, "forwarded"),
        _api(65, "DescribeTransactions", 0, 0, "describe_transactions"),
        _api(66, "ListTransactions", 0, 2, "list_transactions"),
        _api(68, "ConsumerGroupHeartbeat", 0, 1, "consumer_group_heartbeat"),
        _api(69, "ConsumerGroupDescribe", 0, 1, "consumer_group_describe"),
        _api(74, "ListConfigResources", 0, 1, "list_config_resources"),
        _api(75, "DescribeTopicPartitions", 0, 0, "describe_topic_partitions"),
        _api(80, "AddRaftVoter", 0, 0, "forwarded"),
        _api(81, "RemoveRaftVoter", 0, 0, "forwarded"),
    )
}


@cache
def handler_of(module: str) -> Handler:
    handle: Handler = importlib.import_module(module).handle
    return handle
