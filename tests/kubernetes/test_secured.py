"""TLS inside and outside, users and rights on a real Kubernetes: names by its DNS, Secrets mounted by its kubelet."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from e2e.kubernetes.story import ensure_operator
from e2e.kubernetes.world import NAMESPACE, ROOT, World, restricted_pod, topic
from tests.certificates import Authority

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.timeout(900),
    pytest.mark.spec("OPR-40"),
    pytest.mark.filterwarnings("ignore:Exception ignored in. <(socket|ssl):pytest.PytestUnraisableExceptionWarning"),
]
NAME = "secured"
# kubelet looks at what it mounts every minute or so.
MOUNTED_SECONDS = 240.0
CLIENT = """
import sys
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import (ACL, ACLOperation, ACLPermissionType, KafkaAdminClient, ResourcePattern, ResourceType,
                         ScramMechanism, UserScramCredentialUpsertion)
what, host, name = sys.argv[1:4]
tls = {"ssl_cafile": "/tls/ca.crt"}
admin = {"bootstrap_servers": host + ":9094", "security_protocol": "SSL", "ssl_certfile": "/tls/tls.crt",
         "ssl_keyfile": "/tls/tls.key", **tls}
alice = {"bootstrap_servers": host + ":9092", "security_protocol": "SASL_SSL", "sasl_mechanism": "SCRAM-SHA-512",
         "sasl_plain_username": "alice", "sasl_plain_password": "wonder", **tls}
if what == "prepare":
    client = KafkaAdminClient(**admin)
    client.alter_user_scram_credentials([UserScramCredentialUpsertion("alice", ScramMechanism.SCRAM_SHA_512, "wonder")])
    client.create_acls([ACL("User:alice", "*", ACLOperation.ALL, ACLPermissionType.ALLOW, ResourcePattern(kind, "*"))
                        for kind in (ResourceType.TOPIC, ResourceType.GROUP)])
    client.close()
producer = KafkaProducer(acks="all", **alice)
for number in range(100):
    producer.send(name, b"%d" % number).get(60)
producer.close()
consumer = KafkaConsumer(name, auto_offset_reset="earliest", consumer_timeout_ms=60000, group_id=what, **alice)
print(sum(1 for _, record in zip(range(100), consumer)))
consumer.close()
"""

# Until every broker shows these certificates at these ports.
LOOK = """
import socket, ssl, sys, time
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
for port, pem in zip(sys.argv[1::2], sys.argv[2::2]):
    for host in ("secured-0.secured-brokers", "secured-1.secured-brokers", "secured-2.secured-brokers"):
        while True:
            with socket.create_connection((host, int(port))) as plain:
                with context.wrap_socket(plain) as secured:
                    if secured.getpeercert(True) == ssl.PEM_cert_to_DER_cert(pem):
                        break
            time.sleep(1)
"""


def secret(world: World, name: str, authority: Authority, names: list[str], subject: str) -> None:
    whole = authority.issue(name, subject=subject, names=",".join(f"DNS:{one}" for one in names))
    files = {"tls.crt": whole.with_suffix(".crt"), "tls.key": whole.with_suffix(".key"), "ca.crt": authority.ca}
    data = {key: base64.b64encode(path.read_bytes()).decode() for key, path in files.items()}
    world.apply(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": "kubernetes.io/tls", "data": data}
    )


def in_pod(world: World, what: str, name: str) -> str:
    """A client with the administrator's certificate, at the bootstrap Service."""
    address = f"{NAME}-bootstrap.{NAMESPACE}.svc"
    pod = restricted_pod(f"client-{what}", world.provider.image, ["python3", "-c", CLIENT, what, address, name])
    pod["spec"]["volumes"].append({"name": "tls", "secret": {"secretName": "admin"}})
    pod["spec"]["containers"][0]["volumeMounts"].append({"name": "tls", "mountPath": "/tls"})
    return world.run_pod(pod).strip()


def pods(world: World) -> dict[str, str]:
    found = world.all("pods", f"ballast.dev/cluster={NAME}")
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in found}


@pytest.fixture
def secured(world: World) -> Iterator[World]:
    if world.provider.name == "embedded":
        pytest.skip("brokers of the embedded Kubernetes go to each other by address: tests/operator has it there")
    ensure_operator(world)
    yield world
    world.try_kubectl("delete", "kafkatopic", "paid", "renewed", "--ignore-not-found")
    world.try_kubectl("delete", "kafkacluster", NAME, "--ignore-not-found", "--wait=true")
    for selector in ("persistentvolumeclaim", "configmap"):
        world.try_kubectl("delete", selector, "-l", f"ballast.dev/cluster={NAME}", "--ignore-not-found")
    world.try_kubectl("delete", "secret", "secured-internal", "secured-clients", "admin", "--ignore-not-found")


def test_secured(secured: World, tmp_path: Path) -> None:
    world = secured
    inside, outside = Authority(tmp_path / "inside", "inside"), Authority(tmp_path / "outside", "outside")
    names = [f"*.{NAME}-brokers.{NAMESPACE}.svc"]
    whole: dict[str, Any] = yaml.safe_load((ROOT / "manifests" / "examples" / "cluster-secured.yaml").read_text())
    whole["spec"] |= {"image": world.image, "volumes": [{"name": "disk-0", "size": "1Gi"}], "resyncSeconds": 5}
    world.apply(whole)
    world.until("it waits for its Secrets", lambda: world.ready("kafkacluster", NAME)[1] == "SecretNotFound")

    def issue() -> None:
        secret(world, "secured-internal", inside, names, "/CN=secured-internal")
        secret(world, "secured-clients", outside, [*names, f"{NAME}-bootstrap.{NAMESPACE}.svc"], "/CN=secured")

    served = (("9091", "secured-internal", inside), ("9092", "secured-clients", outside))
    issue()
    secret(world, "admin", outside, ["admin"], "/CN=admin")
    world.until_ready("kafkacluster", NAME, 300)
    world.apply(topic("paid", clusterRef={"name": NAME}, partitions=3, replicas=3))
    world.until_ready("kafkatopic", "paid")
    world.say("a cluster with TLS inside is Ready, and the operator has made a topic in it")
    assert in_pod(world, "prepare", "paid") == "100"
    world.say("a pod made a user and its rights by a certificate, wrote and read 100 records by SCRAM")
    before = pods(world)
    issue()
    issued = [(port, (one.folder / f"{name}.crt").read_text().strip()) for port, name, one in served]
    world.run_in_pod("looks", LOOK, *(text for port, pem in issued for text in (port, pem)), seconds=MOUNTED_SECONDS)
    assert pods(world) == before
    world.apply(topic("renewed", clusterRef={"name": NAME}, partitions=3, replicas=3))
    world.until_ready("kafkatopic", "renewed")
    assert in_pod(world, "again", "renewed") == "100"
    world.say("renewed certificates came to brokers, operator and clients without a restart")
    world.kubectl("delete", "pod", f"{NAME}-1")
    world.until("another pod", lambda: pods(world).get(f"{NAME}-1") not in (None, before[f"{NAME}-1"]))
    world.until_ready("kafkacluster", NAME)
