"""A static quorum that becomes one that can be changed: where its voters are to be found from then on."""

from __future__ import annotations

from pathlib import Path

import pytest
from e2e.processes import free_ports
from kafka.admin import KafkaAdminClient
from kafka.protocol.admin import DescribeQuorumRequest
from tests.clients.running import RunningBroker


@pytest.mark.spec("CLU-05")
@pytest.mark.timeout(60)
def test_a_voter_stays_where_the_others_found_it_though_it_listens_on_an_address_of_this_start(tmp_path: Path) -> None:
    """That of a pod is another one after its next start: were all of them restarted, none would find another."""
    client, controller = free_ports(2)
    node = RunningBroker(
        tmp_path,
        node_id="1",
        process_roles="broker,controller",
        controller_listener_names="CONTROLLER",
        listeners=f"PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}",
        advertised_listeners=f"PLAINTEXT://127.0.0.1:{client}",
        controller_quorum_voters=f"1@localhost:{controller}",
    )
    node.start()
    admin = KafkaAdminClient(bootstrap_servers=f"127.0.0.1:{client}")
    try:
        admin.update_features({"kraft.version": 1})
        row = DescribeQuorumRequest.TopicData
        topic = row(topic_name="__cluster_metadata", partitions=[row.PartitionData(partition_index=0)])
        told = admin._manager.run(admin._manager.send, DescribeQuorumRequest(topics=[topic], min_version=2))
        assert [(each.name, each.host, each.port) for each in told.nodes[0].listeners] == [
            ("CONTROLLER", "localhost", controller)
        ]
    finally:
        admin.close()
        node.kill()
