"""Which keys of a Secret are read, and what is said of those that cannot be."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.admin import DescribeQuorumRequest
from tests.certificates import Authority
from tests.operator.making import cluster

from ballast_local.certificates import make_certificate
from ballast_local.cluster import LocalCluster
from ballast_operator.apply.kubernetes import KubernetesApi, path_of
from ballast_operator.connections import Connections
from ballast_operator.kafka_client import ConnectionSettings, KafkaConnection, KafkaUnavailableError, client_options
from ballast_operator.kubeconfig import ApiAccess, read_kubeconfig
from ballast_operator.plan.secured import Reach
from ballast_operator.tls_secrets import SecretMissingError

BINARY = b"\x30\x82\x0a\xff\xfe"
EXTERNAL = {"bootstrapServers": "127.0.0.1:9092", "tls": {"secretName": "ca"}}


async def settings(data: Path, secrets: dict[str, dict[str, bytes]], **how: Any) -> ConnectionSettings:
    """What a connection would be made with, these Secrets being there."""
    local = LocalCluster()
    try:
        api = KubernetesApi(read_kubeconfig(await local.start(data, 0)))
        try:
            for name, content in secrets.items():
                encoded = {key: base64.b64encode(value).decode() for key, value in content.items()}
                body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": encoded}
                await api.create(path_of("v1", "secrets", "default"), body)
            connections = Connections(api)
            found = await connections.get(cluster(volumes=[], external={**EXTERNAL, **how}), Reach(""))
            await connections.close()
            return found.settings
        finally:
            await api.close()
    finally:
        await local.stop()


@pytest.mark.spec("OPR-40")
def test_a_secret_may_hold_binary_keys_beside_those_that_are_read(tmp_path: Path) -> None:
    """As those of cert-manager and Strimzi do: a keystore lies beside the certificate."""
    secrets = {"ca": {"ca.crt": b"a certificate", "ca.p12": BINARY, "ca.password": b"word"}}
    assert asyncio.run(settings(tmp_path, secrets)).ca_pem == "a certificate"


@pytest.mark.spec("OPR-40")
def test_a_key_that_is_no_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(SecretMissingError, match=r"Secret ca: ca\.crt is no text"):
        asyncio.run(settings(tmp_path, {"ca": {"ca.crt": BINARY}}))
    for alone, lacking in (("tls.crt", "tls.key"), ("tls.key", "tls.crt")):
        secrets = {"ca": {"ca.crt": b"a certificate", alone: b"half of it"}}
        with pytest.raises(SecretMissingError, match=f"Secret ca has {alone} and no {lacking}"):
            asyncio.run(settings(tmp_path / f"without-{lacking}", secrets))
    sasl = {"mechanism": "PLAIN", "secretName": "user"}
    secrets = {"ca": {"ca.crt": b"a certificate"}, "user": {"username": b"operator"}}
    with pytest.raises(SecretMissingError, match="Secret user has no key password"):
        asyncio.run(settings(tmp_path / "another", secrets, sasl=sasl))


@pytest.mark.spec("OPR-40")
def test_a_bundle_of_authorities_has_their_names_in_any_language() -> None:
    certificate, _ = make_certificate()
    bundle = f"# Főtanúsítvány\n{certificate}"
    context = client_options(ConnectionSettings("kafka:9093", tls=True, ca_pem=bundle))["ssl_context"]
    assert len(context.get_ca_certs()) == 1
    access = ApiAccess("https://127.0.0.1", ca_pem=bundle.encode()).ssl_context()
    assert access is not None
    assert len(access.get_ca_certs()) == 1


# Nobody's: made for this test.
LOCKED = """-----BEGIN EC PRIVATE KEY-----
Proc-Type: 4,ENCRYPTED
DEK-Info: AES-128-CBC,E3ECB2F403ED062BB2A44BD7D4545787

Oj4slRHIYPAHL/ldpjxj9BlVKYAW+by9zDUxIUeafrTwrphLyC8Z9KH4/TpP3wrZ
0M6m/+RDoTkoBedSkFPIKOMH7jrzXg+DGDxAHDyJyLU45PGnFXvtIr/bmM4xi0B+
6Iqj0Z8CcKCSr0dWEl+uGtAB21qzH7dIY4+8kLNAmZ4=
-----END EC PRIVATE KEY-----
"""


@pytest.mark.spec("OPR-40")
def test_nobody_is_asked_at_the_terminal_for_the_password_of_a_key() -> None:
    certificate, _ = make_certificate()
    locked = ConnectionSettings("kafka:9093", tls=True, certificate_pem=certificate, key_pem=LOCKED)
    with pytest.raises(ssl.SSLError):
        client_options(locked)


@pytest.mark.spec("OPR-25")
async def test_authorities_that_are_no_text_of_openssl_are_told() -> None:
    """Without one letter of ASCII they raised something else: every look failed, and the status said nothing."""
    kafka = KafkaConnection(ConnectionSettings("127.0.0.1:1", tls=True, ca_pem="äöü"))
    with pytest.raises(KafkaUnavailableError, match="The Secret for TLS cannot be used: Empty certificate data"):
        await kafka.supports(DescribeQuorumRequest)
    await kafka.close()


@pytest.mark.spec("OPR-40")
def test_at_the_address_of_a_pod_the_certificate_has_to_have_the_name_of_the_pod(tmp_path: Path) -> None:
    name = "demo-0.demo-brokers.default.svc"
    authority = Authority(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(authority.issue("pod", names=f"DNS:{name}"))
    for hosts, said in (
        ((("10.0.0.7", name),), None),
        ((), "IP address mismatch"),
        ((("10.0.0.7", "demo-1.demo-brokers.default.svc"),), "Hostname mismatch"),
    ):
        settings = ConnectionSettings("10.0.0.7:9091", tls=True, ca_pem=authority.ca.read_text(), hosts=hosts)
        context = client_options(settings)["ssl_context"]
        here, there = socket.socketpair()
        with here, there:
            answering = threading.Thread(target=answer, args=(server, there))
            answering.start()
            try:
                if said is None:
                    context.wrap_socket(here, server_hostname="10.0.0.7").close()
                else:
                    with pytest.raises(ssl.SSLCertVerificationError, match=said):
                        context.wrap_socket(here, server_hostname="10.0.0.7")
            finally:
                here.close()
                answering.join(10)


@pytest.mark.spec("OPR-40")
@pytest.mark.parametrize("believed", ["tests-ca.crt", "api.crt", "others-ca.crt"])
def test_an_api_is_believed_by_what_the_kubeconfig_holds_with_every_python(tmp_path: Path, believed: str) -> None:
    """As by kubectl: an authority without a key usage, which Python 3.13 refuses by itself, and the API's own
    certificate, which those before refuse."""
    api = ApiAccess("https://127.0.0.1", ca_pem=_authorities(tmp_path, believed)).ssl_context()
    assert api is not None
    _believes(api, tmp_path / "api.pem", believed)


@pytest.mark.spec("CLI-06")
@pytest.mark.parametrize("believed", ["tests-ca.crt", "api.crt", "others-ca.crt"])
def test_brokers_are_believed_by_what_the_truststore_holds_as_in_java(tmp_path: Path, believed: str) -> None:
    trusted = _authorities(tmp_path, believed).decode()
    context = client_options(ConnectionSettings("127.0.0.1:9093", tls=True, ca_pem=trusted))["ssl_context"]
    _believes(context, tmp_path / "api.pem", believed)


def _authorities(folder: Path, believed: str) -> bytes:
    authority, _ = Authority(folder), Authority(folder, "others")
    authority.issue("api")
    return (folder / believed).read_bytes()


def _believes(context: ssl.SSLContext, shown: Path, believed: str) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(shown)
    here, there = socket.socketpair()
    with here, there:
        answering = threading.Thread(target=answer, args=(server, there))
        answering.start()
        try:
            if believed == "others-ca.crt":
                with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"):
                    context.wrap_socket(here, server_hostname="127.0.0.1")
            else:
                context.wrap_socket(here, server_hostname="127.0.0.1").close()
        finally:
            answering.join()


def answer(context: ssl.SSLContext, there: socket.socket) -> None:
    with contextlib.suppress(OSError):
        context.wrap_socket(there, server_side=True).close()
