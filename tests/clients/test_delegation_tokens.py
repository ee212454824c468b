"""Delegation tokens in a cluster of three: made at one broker, shown at others, while a controller is killed."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from e2e.processes import free_ports
from tests.clients.running import RunningBroker
from tests.clients.secured import PLAIN
from tests.contract.logins import PASSWORD, LoginFailed, TokenClient, log_in, log_in_by
from tests.contract.wire import WireClient
from tests.waiting import eventually

from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message

pytestmark = [pytest.mark.spec("CLI-13"), pytest.mark.timeout(120)]

NODES = (1, 2, 3)
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
SECRET = "nobody-is-to-read-this"
PATIENCE_S = 30.0
MECHANISM = "SCRAM-SHA-512"
LOGIN = f'username="node" password="{PASSWORD}" user_node="{PASSWORD}"'


class Cluster:
    """Brokers between each other and to controllers by PLAIN."""

    def __init__(self, folder: Path) -> None:
        self.ports = free_ports(6)
        voters = ",".join(f"{each}@127.0.0.1:{self.ports[each + 2]}" for each in NODES)
        self.nodes = [RunningBroker(folder / f"node-{each}") for each in NODES]
        for number, node in zip(NODES, self.nodes, strict=True):
            own, controller = self.ports[number - 1], self.ports[number + 2]
            node._properties |= {
                "node.id": number,
                "cluster.id": CLUSTER_ID,
                "process.roles": "broker,controller",
                "listeners": f"OPEN://127.0.0.1:{own},CONTROLLER://127.0.0.1:{controller}",
                "listener.security.protocol.map": "OPEN:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
                "inter.broker.listener.name": "OPEN",
                "controller.quorum.voters": voters,
                "sasl.enabled.mechanisms": f"PLAIN,{MECHANISM}",
                "sasl.mechanism.inter.broker.protocol": "PLAIN",
                "sasl.mechanism.controller.protocol": "PLAIN",
                "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
                "listener.name.controller.plain.sasl.jaas.config": f"{PLAIN} required {LOGIN};",
                "listener.name.open.plain.sasl.jaas.config": f'{PLAIN} required {LOGIN} user_alice="{PASSWORD}";',
                "delegation.token.secret.key": SECRET,
                "delegation.token.expiry.check.interval.ms": 500,
                "broker.session.timeout.ms": 3000,
            }

    def start(self) -> Cluster:
        with ThreadPoolExecutor(len(NODES)) as pool:
            list(pool.map(RunningBroker.start, self.nodes))
        return self

    @contextlib.contextmanager
    def client(self, number: int) -> Iterator[WireClient]:
        with contextlib.closing(WireClient("127.0.0.1", self.ports[number - 1])) as client:
            yield client

    def ask(self, number: int, name: str, version: int, **fields: Any) -> Any:
        """As alice, by her password."""
        with self.client(number) as client:
            log_in(client, "alice")
            return client.call(message(name + "Request")(**fields), version)

    def leader(self, number: int) -> int:
        kind = message("DescribeQuorumRequest")
        partitions = [kind.TopicData.PartitionData(partition_index=0)]
        topic = kind.TopicData(topic_name="__cluster_metadata", partitions=partitions)
        answer = self.ask(number, "DescribeQuorum", 1, topics=[topic])
        leader: int = answer.topics[0].partitions[0].leader_id
        return leader

    def lifetime_ms(self, number: int, token: tuple[str, str]) -> int:
        """Of a login by this token at this broker, where its owner's requests are answered."""
        with self.client(number) as client:
            lifetime_ms: int = log_in_by(client, MECHANISM, TokenClient(MECHANISM, *token)).session_lifetime_ms
            assert client.call(message("MetadataRequest")(topics=[]), 1).brokers
            refused = client.call(message("CreateDelegationTokenRequest")(renewers=[], max_lifetime_ms=-1), 3)
            assert refused.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
            assert refused.principal_name == "alice"
            return lifetime_ms

    def lets_in(self, number: int, token: tuple[str, str]) -> bool:
        try:
            return self.lifetime_ms(number, token) > 0
        except (LoginFailed, ConnectionError):  # a session ends with its token, also one that has just begun
            return False


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    try:
        yield made.start()
    finally:
        for node in made.nodes:
            node.kill()
    for node in made.nodes:
        assert "Traceback" not in node.log_text(), node.log_text()
        assert SECRET not in node.log_text()


def created(cluster: Cluster, number: int, lifetime_ms: int = -1) -> tuple[Any, tuple[str, str]]:
    answer = cluster.ask(number, "CreateDelegationToken", 3, renewers=[], max_lifetime_ms=lifetime_ms)
    assert answer.error_code == 0
    return answer, (answer.token_id, base64.b64encode(bytes(answer.hmac)).decode())


def test_a_token_outlives_the_controller_that_made_it(cluster: Cluster) -> None:
    leader = eventually(lambda: max(cluster.leader(1), 0), "there is a leader")
    first, second = (each for each in NODES if each != leader)
    answer, token = created(cluster, first)
    eventually(lambda: all(cluster.lets_in(each, token) for each in NODES))
    killed = cluster.nodes[leader - 1]
    killed.kill()
    assert cluster.lets_in(second, token), "nobody has to ask a controller for that"
    renewed = cluster.ask(second, "RenewDelegationToken", 2, hmac=answer.hmac, renew_period_ms=600_000)
    assert renewed.error_code == 0
    eventually(lambda: cluster.lifetime_ms(first, token) <= 600_000)
    killed.start()
    eventually(lambda: cluster.lifetime_ms(leader, token) <= 600_000)
    described = cluster.ask(leader, "DescribeDelegationToken", 3, owners=None)
    assert [(each.token_id, each.hmac) for each in described.tokens] == [(answer.token_id, answer.hmac)]
    ended = cluster.ask(first, "ExpireDelegationToken", 2, hmac=answer.hmac, expiry_time_period_ms=-1)
    assert ended.error_code == 0
    eventually(lambda: not any(cluster.lets_in(each, token) for each in NODES))
    for node in cluster.nodes:
        assert token[1] not in node.log_text()


def test_what_is_over_lets_nobody_in_and_goes(cluster: Cluster) -> None:
    _, token = created(cluster, 1, lifetime_ms=12_000)
    eventually(lambda: cluster.lets_in(2, token))
    with cluster.client(3) as client:
        log_in_by(client, MECHANISM, TokenClient(MECHANISM, *token))
        client.call(message("MetadataRequest")(topics=[]), 1)
        eventually(lambda: not cluster.lets_in(2, token))
        with pytest.raises(ConnectionError):
            client.call(message("MetadataRequest")(topics=[]), 1)
    eventually(lambda: not cluster.ask(3, "DescribeDelegationToken", 3, owners=None).tokens)
