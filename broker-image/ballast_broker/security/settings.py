"""Derives each listener's security from the properties: requirements for clients, this node's own credentials. PURE."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ballast_broker.config_types import ConfigError
from ballast_broker.security.jaas import JaasError, LoginModule, parse_login_module
from ballast_broker.security.kerberos_settings import MODULE as KERBEROS_MODULE
from ballast_broker.security.kerberos_settings import KerberosSettings, kerberos_settings, without_keytab
from ballast_broker.security.oauth_settings import MODULE, TOKEN_URL, OauthSettings, oauth_settings
from ballast_broker.security.properties import GSSAPI, JAAS_SUFFIX, MAX_REAUTH, MECHANISMS, OAUTHBEARER, PLAIN, PREFIX
from ballast_broker.security.tls_settings import TlsSettings, tls_settings

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
USER_OPTION = "user_"


@dataclass(frozen=True, slots=True, repr=False)
class SaslSettings:
    mechanisms: tuple[str, ...]
    plain_users: Mapping[str, str]
    own: Mapping[str, tuple[str, str]]  # mechanism → user and password for this node's own connections
    max_reauth_ms: int
    max_reauth_ms_of: Mapping[str, int] = field(default_factory=dict)  # mechanism → its own value
    oauth: OauthSettings | None = None
    kerberos: KerberosSettings | None = None  # for incoming and own connections

    def check_own(self, listener: str, mechanism: str) -> None:
        """Raise ConfigError unless this node has credentials to connect to such a listener."""
        if mechanism == OAUTHBEARER:
            if self.oauth is None or self.oauth.own is None:
                text = "the token that this node logs in to others with is fetched from there"
                raise ConfigError(f"{TOKEN_URL} is missing: {text}")
        elif mechanism == GSSAPI:
            if self.kerberos is None:
                raise ConfigError(without_keytab(jaas_of(listener, mechanism)))
        elif mechanism not in self.own:
            jaas = jaas_of(listener, mechanism)
            raise ConfigError(f"{jaas} has no username and password, which this node logs in to others with")


def jaas_of(listener: str, mechanism: str) -> str:
    return f"{PREFIX}{listener.lower()}.{mechanism.lower()}{JAAS_SUFFIX}"


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
    """The security of one listener; raises ConfigError.

    `of_listeners`: (lower-case listener name, property) → value. `serving` False: this node only connects to such
    listeners, so it needs no certificate.
    """
    listener = name.lower()

    def value(rest: str) -> Any:
        return of_listeners.get((listener, rest), values[rest])

    tls = sasl = None
    if protocol.endswith("SSL"):
        # As in Kafka: with SASL, client certificates are requested only if set for this very listener.
        asked = value("ssl.client.auth") if protocol == "SSL" else of_listeners.get((listener, "ssl.client.auth"))
        tls = tls_settings(listener, value, asked or "none", serving=serving)
    if protocol.startswith("SASL"):
        own = {rest: found for (each, rest), found in of_listeners.items() if each == listener}
        sasl = _sasl(listener, value, own, serving)
    return ListenerSecurity(protocol, tls, sasl)


def _sasl(listener: str, value: Callable[[str], Any], of_listener: Mapping[str, Any], serving: bool) -> SaslSettings:
    mechanisms = value("sasl.enabled.mechanisms")
    for each in mechanisms:
        check_mechanism("sasl.enabled.mechanisms", each)
    if not mechanisms:
        raise ConfigError(f"sasl.enabled.mechanisms is empty, and listener {listener.upper()} wants SASL")
    plain_users: dict[str, str] = {}
    own: dict[str, tuple[str, str]] = {}
    oauth = known_to_kerberos = None
    for mechanism in mechanisms:
        name = jaas_of(listener, mechanism)
        text = of_listener.get(f"{mechanism.lower()}{JAAS_SUFFIX}")
        if mechanism == OAUTHBEARER:
            oauth = _oauth(listener, value, of_listener, text, serving)
        elif mechanism == GSSAPI:
            if text is not None:
                known_to_kerberos = kerberos_settings(value, name, _module(name, GSSAPI, text).options)
            elif serving:
                raise ConfigError(without_keytab(name))
        elif text is None:
            if mechanism == PLAIN and serving:
                raise ConfigError(f"{name} is missing: it names the users that may log in by PLAIN")
            # SCRAM users are in the metadata; this would only set our own credentials
        else:
            module = _module_with_password(name, mechanism, text)
            if mechanism == PLAIN:
                plain_users = _users(module)
            if "username" in module.options:
                own[mechanism] = (module.options["username"], module.options.get("password", ""))
    reauth_of = {m: each for m in mechanisms if (each := of_listener.get(f"{m.lower()}.{MAX_REAUTH}")) is not None}
    max_reauth_ms = value("connections.max.reauth.ms")
    return SaslSettings(tuple(mechanisms), plain_users, own, max_reauth_ms, reauth_of, oauth, known_to_kerberos)


def _oauth(
    listener: str, value: Callable[[str], Any], of_listener: Mapping[str, Any], text: str | None, serving: bool
) -> OauthSettings:
    """Values of the mechanism take precedence over those of the listener, and those over the node's."""
    name = jaas_of(listener, OAUTHBEARER)

    def of_mechanism(rest: str) -> Any:
        own = f"{OAUTHBEARER.lower()}.{rest}"
        return of_listener[own] if own in of_listener else value(rest)

    options = {} if text is None else _module(name, OAUTHBEARER, text).options
    return oauth_settings(listener, of_mechanism, name, options, serving=serving)


def _users(module: LoginModule) -> dict[str, str]:
    return {
        option.removeprefix(USER_OPTION): password
        for option, password in module.options.items()
        if option.startswith(USER_OPTION)
    }


def _module(name: str, mechanism: str, text: str) -> LoginModule:
    try:
        module = parse_login_module(text)
    except JaasError as error:
        raise ConfigError(f"Invalid value [hidden] for configuration {name}: {error}") from None
    expected = {PLAIN: PLAIN_MODULE, OAUTHBEARER: MODULE, GSSAPI: KERBEROS_MODULE}.get(mechanism, SCRAM_MODULE)
    if module.name != expected:
        raise ConfigError(
            f"Invalid value [hidden] for configuration {name}: the login module of {mechanism} is {expected}"
        )
    return module


def _module_with_password(name: str, mechanism: str, text: str) -> LoginModule:
    module = _module(name, mechanism, text)
    for option in module.options:
        known = option in ("username", "password") or (mechanism == PLAIN and option.startswith(USER_OPTION))
        if not known:
            raise ConfigError(f"Invalid value [hidden] for configuration {name}: option {option} is not known here")
    if ("username" in module.options) != ("password" in module.options):
        raise ConfigError(f"Invalid value [hidden] for configuration {name}: username and password go together")
    return module


def check_mechanism(name: str, mechanism: str) -> None:
    if mechanism not in MECHANISMS:
        raise ConfigError(f"Invalid value {mechanism} for configuration {name}: there are {', '.join(MECHANISMS)}")
