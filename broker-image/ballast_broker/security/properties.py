"""Kafka's properties of encryption and authentication, and which of them a listener may have of its own. PURE."""

from __future__ import annotations

from collections.abc import Container

from ballast_broker.config_types import Property, between, each_of, one_of

_P = Property
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SCRAM_SHA_256, SCRAM_SHA_512, PLAIN = "SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"
MECHANISMS = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512)
TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")
JAAS_SUFFIX = ".sasl.jaas.config"
PREFIX = "listener.name."

SECURITY_PROPERTIES = (
    _P("connection.failed.authentication.delay.ms", "int", 100, between(0)),
    _P("connections.max.reauth.ms", "long", 0),
    _P("sasl.enabled.mechanisms", "list", ("GSSAPI",)),
    _P("sasl.mechanism.controller.protocol", "string", "GSSAPI"),
    _P("sasl.mechanism.inter.broker.protocol", "string", "GSSAPI"),
    _P("security.inter.broker.protocol", "string", "PLAINTEXT", one_of(*PROTOCOLS)),
    _P("ssl.cipher.suites", "list", ()),
    _P("ssl.client.auth", "string", "none", one_of("required", "requested", "none")),
    _P("ssl.enabled.protocols", "list", ("TLSv1.2", "TLSv1.3"), each_of(*TLS_VERSIONS)),
    _P("ssl.endpoint.identification.algorithm", "string", "https", one_of("https", "")),
    _P("ssl.key.password", "password", None),
    _P("ssl.keystore.certificate.chain", "password", None),
    _P("ssl.keystore.key", "password", None),
    _P("ssl.keystore.location", "string", None),
    _P("ssl.keystore.password", "password", None),
    _P("ssl.keystore.type", "string", "JKS"),
    _P("ssl.principal.mapping.rules", "string", "DEFAULT"),
    _P("ssl.protocol", "string", "TLSv1.3", one_of("TLSv1.3", "TLSv1.2", "TLS")),
    _P("ssl.truststore.certificates", "password", None),
    _P("ssl.truststore.location", "string", None),
    _P("ssl.truststore.password", "password", None),
    _P("ssl.truststore.type", "string", "JKS"),
)
BY_NAME = {each.name: each for each in SECURITY_PROPERTIES}
# The rest is said once for the whole node.
OF_A_LISTENER = frozenset(
    {"connections.max.reauth.ms", "sasl.enabled.mechanisms", *(name for name in BY_NAME if name.startswith("ssl."))}
)


def listener_property(name: str, others: Container[str] = ()) -> tuple[str, str] | None:
    """Of `listener.name.client.ssl.client.auth` the listener's name, as Kafka writes it there, and the property; None
    where it is none. `others` are what a listener may have beside what is here."""
    if not name.startswith(PREFIX):
        return None
    listener, _, rest = name.removeprefix(PREFIX).partition(".")
    if not listener or listener != listener.lower():
        return None
    return (listener, rest) if rest in OF_A_LISTENER or rest in others or rest.endswith(JAAS_SUFFIX) else None


def parse_of_listener(name: str, known: Property | None, text: str) -> object:
    if known is None:
        return text  # a JAAS configuration, read together with its mechanism
    return Property(name, known.kind, known.default, known.rule).parse(text)
