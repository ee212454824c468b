"""What a listener asks of those who come in, and what a node shows where it goes itself: of the properties. PURE."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ballast_broker.config_types import ConfigError
from ballast_broker.security.jaas import JaasError, LoginModule, parse_login_module
from ballast_broker.security.names import RuleError, name_by_rules
from ballast_broker.security.properties import JAAS_SUFFIX, MECHANISMS, PLAIN, PREFIX

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
USER_OPTION = "user_"
CONVERT = {
    "JKS": "keytool -importkeystore -srckeystore FILE -destkeystore FILE.p12 -deststoretype PKCS12, then as PKCS12",
    "PKCS12": "openssl pkcs12 -in FILE.p12 -out FILE.pem -nodes",
}


@dataclass(frozen=True, slots=True, repr=False)
class Store:
    """Certificates, and in a keystore the key: in a file or in the property itself."""

    location: str | None
    certificates: str | None
    key: str | None = None

    @property
    def is_there(self) -> bool:
        return self.location is not None or self.certificates is not None


class _Names(NamedTuple):
    type: str
    password: str
    location: str
    inline: str


KEYSTORE = _Names(
    "ssl.keystore.type", "ssl.keystore.password", "ssl.keystore.location", "ssl.keystore.certificate.chain"
)
TRUSTSTORE = _Names(
    "ssl.truststore.type", "ssl.truststore.password", "ssl.truststore.location", "ssl.truststore.certificates"
)


@dataclass(frozen=True, slots=True, repr=False)
class TlsSettings:
    listener: str  # as in `listener.name.…`, for what is wrong with it
    keystore: Store
    key_password: str | None
    truststore: Store
    client_auth: str
    versions: tuple[str, ...]
    ciphers: tuple[str, ...]
    check_host: bool
    mapping_rules: str


@dataclass(frozen=True, slots=True, repr=False)
class SaslSettings:
    mechanisms: tuple[str, ...]
    plain_users: Mapping[str, str]
    own: Mapping[str, tuple[str, str]]  # mechanism → user and password with which this node goes to such a listener
    max_reauth_ms: int


@dataclass(frozen=True, slots=True, repr=False)
class ListenerSecurity:
    protocol: str
    tls: TlsSettings | None = None
    sasl: SaslSettings | None = None


def listener_security(
    name: str,
    protocol: str,
    values: Mapping[str, Any],
    of_listeners: Mapping[tuple[str, str], Any],
    *,
    serving: bool,
) -> ListenerSecurity:
    """`of_listeners`: (listener's name in small letters, rest of the property) → value. Where this node does not listen
    but only goes (`serving` False) it needs no certificate. ConfigError where something is wrong."""
    listener = name.lower()

    def value(rest: str) -> Any:
        return of_listeners.get((listener, rest), values[rest])

    tls = sasl = None
    if protocol.endswith("SSL"):
        # As in Kafka: with SASL a client shows a certificate only where this very listener asks for one.
        asked = value("ssl.client.auth") if protocol == "SSL" else of_listeners.get((listener, "ssl.client.auth"))
        tls = _tls(listener, value, asked or "none", serving)
    if protocol.startswith("SASL"):
        texts = {rest: text for (each, rest), text in of_listeners.items() if each == listener}
        sasl = _sasl(listener, value, texts, serving)
    return ListenerSecurity(protocol, tls, sasl)


def _tls(listener: str, value: Callable[[str], Any], client_auth: str, serving: bool) -> TlsSettings:
    keystore = Store(value("ssl.keystore.location"), value("ssl.keystore.certificate.chain"), value("ssl.keystore.key"))
    truststore = Store(value("ssl.truststore.location"), value("ssl.truststore.certificates"))
    if keystore.is_there:
        _check_store(keystore, value, KEYSTORE)
    if truststore.is_there:
        _check_store(truststore, value, TRUSTSTORE)
    if serving and not keystore.is_there:
        raise ConfigError(
            f"listener {listener.upper()} has no certificate: set ssl.keystore.type=PEM and ssl.keystore.location, or "
            "ssl.keystore.certificate.chain and ssl.keystore.key"
        )
    if keystore.certificates is not None and keystore.key is None:
        raise ConfigError("ssl.keystore.certificate.chain is set and ssl.keystore.key is not: a certificate needs both")
    if serving and client_auth != "none" and not truststore.is_there:
        raise ConfigError(
            f"ssl.client.auth is {client_auth} and there is no truststore: set ssl.truststore.type=PEM and "
            "ssl.truststore.location or ssl.truststore.certificates"
        )
    try:
        name_by_rules(value("ssl.principal.mapping.rules"))
    except RuleError as error:
        raise ConfigError(
            f"Invalid value {value('ssl.principal.mapping.rules')} for configuration ssl.principal.mapping.rules: "
            f"{error}"
        ) from None
    versions = value("ssl.enabled.protocols")
    if value("ssl.protocol") == "TLSv1.2":
        versions = tuple(each for each in versions if each == "TLSv1.2")
    if not versions:
        raise ConfigError("ssl.protocol and ssl.enabled.protocols have no version of TLS in common")
    return TlsSettings(
        listener=listener,
        keystore=keystore,
        key_password=value("ssl.key.password"),
        truststore=truststore,
        client_auth=client_auth,
        versions=versions,
        ciphers=value("ssl.cipher.suites"),
        check_host=value("ssl.endpoint.identification.algorithm") == "https",
        mapping_rules=value("ssl.principal.mapping.rules"),
    )


def _check_store(store: Store, value: Callable[[str], Any], names: _Names) -> None:
    kind = value(names.type)
    if kind.upper() != "PEM":
        how = CONVERT.get(kind.upper(), "keytool or openssl")
        raise ConfigError(
            f"Invalid value {kind} for configuration {names.type}: only PEM is read here; convert it ({how}) and set "
            f"{names.type}=PEM"
        )
    if value(names.password) is not None:
        raise ConfigError(f"{names.password} is set, and a store of type PEM has none: a key's own is ssl.key.password")
    if store.location is not None and (store.certificates is not None or store.key is not None):
        raise ConfigError(f"{names.location} and {names.inline} are both set: give one of them")


def _sasl(listener: str, value: Callable[[str], Any], texts: Mapping[str, str], serving: bool) -> SaslSettings:
    mechanisms = value("sasl.enabled.mechanisms")
    for each in mechanisms:
        check_mechanism("sasl.enabled.mechanisms", each)
    if not mechanisms:
        raise ConfigError(f"sasl.enabled.mechanisms is empty, and listener {listener.upper()} wants SASL")
    plain_users: dict[str, str] = {}
    own: dict[str, tuple[str, str]] = {}
    for mechanism in mechanisms:
        name = f"{PREFIX}{listener}.{mechanism.lower()}{JAAS_SUFFIX}"
        text = texts.get(f"{mechanism.lower()}{JAAS_SUFFIX}")
        if text is None:
            if mechanism == PLAIN and serving:
                raise ConfigError(f"{name} is missing: who may come in by PLAIN is said there")
            continue  # SCRAM's users are in the metadata; here is only who we are ourselves
        module = _module(name, mechanism, text)
        if mechanism == PLAIN:
            plain_users = {
                option.removeprefix(USER_OPTION): password
                for option, password in module.options.items()
                if option.startswith(USER_OPTION)
            }
        if "username" in module.options:
            own[mechanism] = (module.options["username"], module.options.get("password", ""))
    return SaslSettings(tuple(mechanisms), plain_users, own, value("connections.max.reauth.ms"))


def _module(name: str, mechanism: str, text: str) -> LoginModule:
    try:
        module = parse_login_module(text)
    except JaasError as error:
        raise ConfigError(f"Invalid value [hidden] for configuration {name}: {error}") from None
    expected = PLAIN_MODULE if mechanism == PLAIN else SCRAM_MODULE
    if module.name != expected:
        raise ConfigError(
            f"Invalid value [hidden] for configuration {name}: the login module of {mechanism} is {expected}"
        )
    for option in module.options:
        known = option in ("username", "password") or (mechanism == PLAIN and option.startswith(USER_OPTION))
        if not known:
            raise ConfigError(f"Invalid value [hidden] for configuration {name}: option {option} is not known here")
    if ("username" in module.options) != ("password" in module.options):
        raise ConfigError(f"Invalid value [hidden] for configuration {name}: username and password go together")
    return module


def check_mechanism(name: str, mechanism: str) -> None:
    if mechanism not in MECHANISMS:
        raise ConfigError(
            f"Invalid value {mechanism} for configuration {name}: built are {', '.join(MECHANISMS)} "
            "(GSSAPI needs Kerberos, OAUTHBEARER a library for signed tokens)"
        )
