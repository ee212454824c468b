"""A broker with SASL/OAUTHBEARER, its identity provider, and the settings with which each client gets a token."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from tests.certificates import Authority, believing
from tests.clients.running import RunningBroker
from tests.identity_provider import AUDIENCE, CLIENTS, ISSUER, Provider

PACKAGE = "org.apache.kafka.common.security.oauthbearer."
MODULE = f"{PACKAGE}OAuthBearerLoginModule"
PROTOCOLS = {"OPEN": "SASL_PLAINTEXT", "SAFE": "SASL_SSL"}
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
USER = "alice"


class WithTokens:
    """Users have the rights that `allow` grants, over the listener PLAINTEXT, on which everybody is a superuser."""

    def __init__(self, folder: Path, provider: Provider) -> None:
        self.provider = provider
        self.authority = Authority(folder / "ca")
        self.broker = RunningBroker(folder / "broker")
        self.broker._properties |= {
            "listeners": "PLAINTEXT://127.0.0.1:0,OPEN://127.0.0.1:0,SAFE://127.0.0.1:0",
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,OPEN:SASL_PLAINTEXT,SAFE:SASL_SSL"
            ),
            "inter.broker.listener.name": "PLAINTEXT",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.authority.issue("node")),
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": provider.jwks_url,
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "sasl.oauthbearer.expected.audience": f"{AUDIENCE},other",
            "listener.name.safe.oauthbearer.connections.max.reauth.ms": 3000,
            "authorizer.class.name": AUTHORIZER,
            "super.users": "User:ANONYMOUS",
        }

    @classmethod
    @contextmanager
    def running(cls, folder: Path) -> Iterator[WithTokens]:
        """Run it; afterwards its log must have no traceback and no token."""
        with Provider() as provider:
            found = cls(folder, provider)
            found.broker.start()
            yield found
            assert found.broker.stop() == 0
        said = found.broker.log_text()
        assert "Traceback" not in said, said
        assert "eyJ" not in said, "a token is in the log"

    def allow(self, user: str, topic: str, group: str | None = None) -> None:
        named = [(ResourceType.TOPIC, topic)] + ([] if group is None else [(ResourceType.GROUP, group)])
        entries = [
            AclBinding(kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*", each, AclPermissionType.ALLOW)
            for kind, name in named
            for each in (AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE)
            if kind is ResourceType.TOPIC or each is AclOperation.READ
        ]
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        for done in admin.create_acls(entries).values():
            done.result(20)

    def librdkafka(self, listener: str, token: str | None = None, **how: Any) -> dict[str, Any]:
        """Settings of librdkafka with tokens from a callback, or always this token."""

        def give(_config: str) -> tuple[str, float]:
            return token or self.provider.token(USER), time.time() + 600

        settings = {
            "bootstrap.servers": self.broker.listeners[listener],
            "security.protocol": PROTOCOLS[listener],
            "ssl.ca.location": str(self.authority.ca),
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": give,
        }
        return settings | how

    def oidc(self, listener: str) -> dict[str, Any]:
        """Settings with which librdkafka gets tokens itself (OIDC)."""
        settings = self.librdkafka(listener)
        del settings["oauth_cb"]
        return settings | {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": USER,
            "sasl.oauthbearer.client.secret": CLIENTS[USER],
            "sasl.oauthbearer.token.endpoint.url": self.provider.token_url,
            "sasl.oauthbearer.extensions": "tenant=shop",
        }

    def python(self, listener: str) -> dict[str, Any]:
        """Settings of kafka-python and aiokafka, without their token providers."""
        context = None if listener == "OPEN" else believing(self.authority.ca)
        return {
            "bootstrap_servers": self.broker.listeners[listener],
            "security_protocol": PROTOCOLS[listener],
            "ssl_context": context,
            "sasl_mechanism": "OAUTHBEARER",
        }

    def java(self, folder: Path, listener: str, user: str = USER, secret: str | None = None) -> Path:
        lines = {
            "security.protocol": PROTOCOLS[listener],
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.ca),
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.login.callback.handler.class": f"{PACKAGE}OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.token.endpoint.url": self.provider.token_url,
            "sasl.jaas.config": (
                f'{MODULE} required clientId="{user}" clientSecret="{secret or CLIENTS[USER]}" extension_tenant="shop";'
            ),
        }
        file = folder / f"{listener}-{user}.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        return file
