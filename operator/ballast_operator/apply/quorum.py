"""Changes the voters of a cluster's metadata quorum, one request per change. Decides nothing.

Kafka answers once the change is committed. A change without an answer may have been made all the same; the next
observation shows it.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from kafka.protocol.admin import UpdateFeaturesRequest
from kafka.protocol.api_message import ApiMessage

import ballast_operator.schemas as schemas
from ballast_operator.kafka_client import KafkaConnection
from ballast_operator.model.kafka import Outcome
from ballast_operator.observe import error_name

TIMEOUT_MS = 10_000
UPGRADE = 1


class AddRaftVoterRequest(ApiMessage, load_json=schemas):  # type: ignore[misc, call-arg]
    pass


class AddRaftVoterResponse(ApiMessage, load_json=schemas):  # type: ignore[misc, call-arg]
    pass


class RemoveRaftVoterRequest(ApiMessage, load_json=schemas):  # type: ignore[misc, call-arg]
    pass


class RemoveRaftVoterResponse(ApiMessage, load_json=schemas):  # type: ignore[misc, call-arg]
    pass


async def finalize_feature(kafka: KafkaConnection, feature: str, level: int) -> Outcome:
    row = UpdateFeaturesRequest.FeatureUpdateKey
    update = row(feature=feature, max_version_level=level, allow_downgrade=False, upgrade_type=UPGRADE)
    request = UpdateFeaturesRequest(timeout_ms=TIMEOUT_MS, feature_updates=[update], validate_only=False, min_version=1)
    return await _outcome(kafka, request)


async def add_voter(
    kafka: KafkaConnection, cluster_id: str, node: int, directory: UUID, listener: str, host: str, port: int
) -> Outcome:
    request = AddRaftVoterRequest(
        cluster_id=cluster_id,
        timeout_ms=TIMEOUT_MS,
        voter_id=node,
        voter_directory_id=directory,
        listeners=[AddRaftVoterRequest.Listener(name=listener, host=host, port=port)],
    )
    return await _outcome(kafka, request)


async def remove_voter(kafka: KafkaConnection, cluster_id: str, node: int, directory: UUID) -> Outcome:
    request = RemoveRaftVoterRequest(cluster_id=cluster_id, voter_id=node, voter_directory_id=directory)
    return await _outcome(kafka, request)


async def _outcome(kafka: KafkaConnection, request: Any) -> Outcome:
    response = await kafka.send_to_controller(request, lambda r: [r.error_code])
    return Outcome(error_name(response.error_code), response.error_message or "")
