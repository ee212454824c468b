"""A broker whose listeners authenticate clients by TLS or SASL, and the settings with which each client logs in."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)
from tests.certificates import Authority, believing
from tests.clients.running import RunningBroker

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
USER, PASSWORD = "alice", 'wonder "land"; x=1'
MAP = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,TLS:SSL,MUTUAL:SSL,OPEN:SASL_PLAINTEXT,SAFE:SASL_SSL"
PROTOCOLS = {"TLS": "SSL", "MUTUAL": "SSL", "OPEN": "SASL_PLAINTEXT", "SAFE": "SASL_SSL"}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
# All combinations of listener and mechanism.
WAYS = [("TLS", None), ("MUTUAL", None), *((each, how) for each in ("OPEN", "SAFE") for how in MECHANISMS)]


def quoted(text: str) -> str:
    """Quote for a JAAS configuration within a properties file: backslashes are escaped for both."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\\", "\\\\") + '"'


class Secured:
    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder / "ca")
        self.keystore = self.authority.issue("node")
        self.own = self.authority.issue("orders", subject="/O=Shop/CN=orders")
        self.broker = RunningBroker(folder / "broker")
        listeners = ",".join(f"{name}://127.0.0.1:0" for name in ("PLAINTEXT", *PROTOCOLS))
        users = f"{PLAIN} required user_{USER}={quoted(PASSWORD)} user_admin=admins;"
        self.broker._properties |= {
            "listeners": listeners,
            "listener.security.protocol.map": MAP,
            "inter.broker.listener.name": "PLAINTEXT",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.keystore),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.ca),
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.mutual.ssl.principal.mapping.rules": r"RULE:^CN=(\\w+),.*$/$1/, DEFAULT",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "listener.name.open.plain.sasl.jaas.config": users,
            "listener.name.safe.plain.sasl.jaas.config": users,
        }

    def start(self) -> Secured:
        self.broker.start()
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        mechanisms = (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
        changes: list[UserScramCredentialAlteration] = [
            UserScramCredentialUpsertion(USER, ScramCredentialInfo(each, 4096), PASSWORD.encode())
            for each in mechanisms
        ]
        for done in admin.alter_user_scram_credentials(changes).values():
            done.result(20)
        return self

    def librdkafka(self, listener: str, mechanism: str | None, **how: Any) -> dict[str, Any]:
        settings = {
            "bootstrap.servers": self.broker.listeners[listener],
            "security.protocol": PROTOCOLS[listener],
            "ssl.ca.location": str(self.authority.ca),
        }
        if listener == "MUTUAL":
            settings |= {"ssl.certificate.location": str(self.own), "ssl.key.location": str(self.own)}
        if mechanism is not None:
            settings |= {"sasl.mechanism": mechanism, "sasl.username": USER, "sasl.password": PASSWORD}
        return settings | how

    def context(self, listener: str) -> ssl.SSLContext | None:
        if "SSL" not in PROTOCOLS[listener]:
            return None
        context = believing(self.authority.ca)
        if listener == "MUTUAL":
            context.load_cert_chain(self.own)
        return context

    def python(self, listener: str, mechanism: str | None) -> dict[str, Any]:
        """Settings of kafka-python and aiokafka."""
        settings: dict[str, Any] = {
            "bootstrap_servers": self.broker.listeners[listener],
            "security_protocol": PROTOCOLS[listener],
            "ssl_context": self.context(listener),
        }
        if mechanism is not None:
            login = {"sasl_plain_username": USER, "sasl_plain_password": PASSWORD}
            settings |= {"sasl_mechanism": mechanism, **login}
        return settings

    def java(self, folder: Path, listener: str, mechanism: str | None, password: str = PASSWORD) -> Path:
        """A file for `--command-config`, with a PEM truststore and a PKCS12 keystore."""
        lines = {
            "security.protocol": PROTOCOLS[listener],
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.ca),
        }
        if listener == "MUTUAL":
            lines |= {
                "ssl.keystore.type": "PKCS12",
                "ssl.keystore.location": str(self.pkcs12(folder)),
                "ssl.keystore.password": "changeit",
            }
        if mechanism is not None:
            module = PLAIN if mechanism == "PLAIN" else SCRAM
            login = f"{module} required username={quoted(USER)} password={quoted(password)};"
            lines |= {"sasl.mechanism": mechanism, "sasl.jaas.config": login}
        file = folder / f"{listener}-{mechanism}.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        return file

    def pkcs12(self, folder: Path) -> Path:
        made = folder / "orders.p12"
        command = ["openssl", "pkcs12", "-export", "-in", str(self.own), "-out", str(made), "-passout", "pass:changeit"]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        return made
