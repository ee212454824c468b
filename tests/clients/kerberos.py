"""A broker with SASL/GSSAPI, and the settings with which each client logs in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests import kdc as kerberos
from tests.certificates import Authority, believing
from tests.clients.running import RunningBroker
from tests.kdc import REALM, Kdc, login_module

PROTOCOLS = {"OPEN": "SASL_PLAINTEXT", "SAFE": "SASL_SSL"}
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
SERVICE = "kafka/localhost"


class WithKerberos:
    """`alice` is a superuser; on the listener SAFE principals are upper-cased and a session lasts 3 s."""

    def __init__(self, folder: Path, kdc: Kdc) -> None:
        self.kdc = kdc
        self.authority = Authority(folder / "ca")
        self.keytabs = {user: kdc.keytab(user) for user in ("alice", "bob", SERVICE)}
        self.broker = RunningBroker(folder / "broker")
        module = login_module(SERVICE, self.keytabs[SERVICE])
        self.broker._properties |= {
            "listeners": "PLAINTEXT://127.0.0.1:0,OPEN://localhost:0,SAFE://localhost:0",
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,OPEN:SASL_PLAINTEXT,SAFE:SASL_SSL"
            ),
            "inter.broker.listener.name": "PLAINTEXT",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.authority.issue("node")),
            "sasl.enabled.mechanisms": "GSSAPI",
            "sasl.kerberos.service.name": "kafka",
            "listener.name.open.gssapi.sasl.jaas.config": module,
            "listener.name.safe.gssapi.sasl.jaas.config": module,
            "listener.name.safe.gssapi.connections.max.reauth.ms": 3000,
            "listener.name.safe.sasl.kerberos.principal.to.local.rules": f"RULE:[1:$1@$0](.*@{REALM})s/@.*//U",
            "authorizer.class.name": AUTHORIZER,
            "super.users": "User:ANONYMOUS;User:alice;User:ALICE",
        }

    @classmethod
    @contextmanager
    def running(cls, folder: Path, **how: Any) -> Iterator[WithKerberos]:
        with kerberos.running(folder / "kdc", **how) as kdc, pytest.MonkeyPatch.context() as environment:
            for name, value in kdc.environment.items():
                environment.setenv(name, value)
            found = cls(folder, kdc)
            found.broker.start()
            yield found
            assert found.broker.stop() == 0
        said = found.broker.log_text()
        assert "Traceback" not in said, said

    def python(self, listener: str) -> dict[str, Any]:
        """Settings of kafka-python, which uses the tickets that the environment names."""
        context = None if listener == "OPEN" else believing(self.authority.ca)
        return {
            "bootstrap_servers": self.broker.listeners[listener],
            "security_protocol": PROTOCOLS[listener],
            "ssl_context": context,
            "sasl_mechanism": "GSSAPI",
        }

    def java(self, folder: Path, listener: str, user: str = "alice", keytab: Path | None = None) -> Path:
        lines = {
            "security.protocol": PROTOCOLS[listener],
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.ca),
            "sasl.mechanism": "GSSAPI",
            "sasl.kerberos.service.name": "kafka",
            "sasl.jaas.config": login_module(user, keytab or self.keytabs[user]),
        }
        file = folder / f"{listener}-{user}.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        return file
