"""Kafka's security properties, and which of them can be set per listener. PURE."""

from __future__ import annotations

from collections.abc import Container, Mapping

from ballast_broker.config_types import Property, between, each_of, one_of

_P = Property
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SCRAM_SHA_256, SCRAM_SHA_512, PLAIN, OAUTHBEARER = "SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER"
GSSAPI = "GSSAPI"
MECHANISMS = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER, GSSAPI)
TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")
JAAS_SUFFIX = ".sasl.jaas.config"
PREFIX = "listener.name."
MAX_REAUTH = "connections.max.reauth.ms"
_OAUTH = "org.apache.kafka.common.security.oauthbearer."
JWT_RETRIEVERS = (
    _OAUTH + "DefaultJwtRetriever",
    _OAUTH + "ClientCredentialsJwtRetriever",
    _OAUTH + "FileJwtRetriever",
)
_LOGIN_HANDLER, _VALIDATOR = _OAUTH + "OAuthBearerLoginCallbackHandler", _OAUTH + "OAuthBearerValidatorCallbackHandler"
JWT_VALIDATORS = tuple(_OAUTH + each for each in ("DefaultJwtValidator", "BrokerJwtValidator"))

SECURITY_PROPERTIES = (
    _P("connection.failed.authentication.delay.ms", "int", 100, between(0)),
    _P("connections.max.reauth.ms", "long", 0),
    _P("sasl.enabled.mechanisms", "list", ("GSSAPI",)),
    _P("sasl.kerberos.kinit.cmd", "string", "/usr/bin/kinit"),
    _P("sasl.kerberos.min.time.before.relogin", "long", 60_000),
    _P("sasl.kerberos.principal.to.local.rules", "list", ("DEFAULT",)),
    _P("sasl.kerberos.service.name", "string", None),
    _P("sasl.kerberos.ticket.renew.jitter", "double", 0.05),
    _P("sasl.kerberos.ticket.renew.window.factor", "double", 0.8),
    _P("sasl.login.connect.timeout.ms", "int", None, between(1)),
    _P("sasl.login.read.timeout.ms", "int", None, between(1)),
    _P("sasl.login.refresh.window.factor", "double", 0.8, between(0.5, 1.0)),
    _P("sasl.login.retry.backoff.max.ms", "long", 10_000, between(0)),
    _P("sasl.login.retry.backoff.ms", "long", 100, between(0)),
    _P("sasl.mechanism.controller.protocol", "string", "GSSAPI"),
    _P("sasl.mechanism.inter.broker.protocol", "string", "GSSAPI"),
    _P("sasl.oauthbearer.client.credentials.client.id", "string", None),
    _P("sasl.oauthbearer.client.credentials.client.secret", "password", None),
    _P("sasl.oauthbearer.clock.skew.seconds", "int", 30, between(0)),
    _P("sasl.oauthbearer.expected.audience", "list", None),
    _P("sasl.oauthbearer.expected.issuer", "string", None),
    _P("sasl.oauthbearer.jwks.endpoint.refresh.ms", "long", 3_600_000, between(1)),
    _P("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", "long", 10_000, between(0)),
    _P("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", "long", 100, between(0)),
    _P("sasl.oauthbearer.jwks.endpoint.url", "string", None),
    _P("sasl.oauthbearer.jwt.retriever.class", "string", JWT_RETRIEVERS[0], one_of(*JWT_RETRIEVERS)),
    _P("sasl.oauthbearer.jwt.validator.class", "string", JWT_VALIDATORS[0]),
    _P("sasl.oauthbearer.scope", "string", None),
    _P("sasl.oauthbearer.scope.claim.name", "string", "scope"),
    _P("sasl.oauthbearer.sub.claim.name", "string", "sub"),
    _P("sasl.oauthbearer.token.endpoint.url", "string", None),
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
# Accepted because Apache Kafka needs them to check tokens, on each listener; here signatures are always verified.
HANDLERS = {
    each.name: each
    for each in (
        _P("sasl.login.callback.handler.class", "string", None, one_of(_LOGIN_HANDLER)),
        _P("sasl.server.callback.handler.class", "string", None, one_of(_VALIDATOR)),
    )
}
_OF_OAUTHBEARER = frozenset(name for name in BY_NAME if name.startswith(("sasl.login.", "sasl.oauthbearer.")))
_OF_KERBEROS = frozenset({"sasl.kerberos.principal.to.local.rules", "sasl.kerberos.service.name"})
# libkrb5 renews tickets from the keytab by itself, at its own pace.
WITHOUT_EFFECT = frozenset(name for name in BY_NAME if name.startswith("sasl.kerberos.")) - _OF_KERBEROS
# All others are set once per node.
_OF_TLS = frozenset(name for name in BY_NAME if name.startswith("ssl."))
OF_A_LISTENER = _OF_OAUTHBEARER | _OF_KERBEROS | _OF_TLS | {MAX_REAUTH, "sasl.enabled.mechanisms"}
OF_A_MECHANISM = frozenset(
    {f"{each.lower()}.{name}" for each in MECHANISMS for name in (MAX_REAUTH, JAAS_SUFFIX[1:])}
    | {f"{OAUTHBEARER.lower()}.{name}" for name in (*_OF_OAUTHBEARER, *HANDLERS)}
)


def listener_property(name: str, others: Container[str] = ()) -> tuple[str, str] | None:
    """Split `listener.name.client.ssl.client.auth` into the listener's (lower-case) name and the property; None if it
    is not one. `others`: further properties a listener may have.
    """
    if not name.startswith(PREFIX):
        return None
    listener, _, rest = name.removeprefix(PREFIX).partition(".")
    if not listener or listener != listener.lower():
        return None
    known = rest in OF_A_LISTENER or rest in OF_A_MECHANISM or rest in others or rest.endswith(JAAS_SUFFIX)
    return (listener, rest) if known else None


def parse_of_listener(name: str, rest: str, text: str, others: Mapping[str, Property] = {}) -> object:
    """Parse the value; `rest` and `others` as in `listener_property`."""
    if rest in OF_A_MECHANISM:
        rest = rest.partition(".")[2]
    known = BY_NAME.get(rest) or HANDLERS.get(rest) or others.get(rest)
    if known is None:
        return text  # a JAAS configuration, parsed together with its mechanism
    return Property(name, known.kind, known.default, known.rule).parse(text)
