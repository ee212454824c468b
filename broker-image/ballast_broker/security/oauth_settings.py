"""Reads `sasl.oauthbearer.…` and `sasl.login.…`: the tokens a listener accepts, the source of this node's own. PURE."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from ballast_broker.config_types import ConfigError
from ballast_broker.security.oauthbearer import EXTENSION_KEY, EXTENSION_VALUE
from ballast_broker.security.properties import BY_NAME, JWT_RETRIEVERS, JWT_VALIDATORS
from ballast_broker.security.tls_settings import TlsSettings, tls_settings

MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
JWKS_URL, TOKEN_URL = "sasl.oauthbearer.jwks.endpoint.url", "sasl.oauthbearer.token.endpoint.url"
CLIENT_ID, CLIENT_SECRET, SCOPE = (
    "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.scope",
)
IN_JAAS = {CLIENT_ID: "clientId", CLIENT_SECRET: "clientSecret", SCOPE: "scope"}
EXTENSION = "extension_"
LEAST_BACKOFF_S = 0.05
PORTS = {"http": 80, "https": 443}
Value = Callable[[str], Any]


@dataclass(frozen=True, slots=True, repr=False)
class Endpoint:
    """A source of keys or tokens: an HTTP endpoint or a file."""

    asked_by: str  # the property
    url: str
    scheme: str
    host: str
    port: int
    path: str
    tls: TlsSettings | None = None  # trust settings, with https

    @property
    def is_file(self) -> bool:
        return self.scheme == "file"


@dataclass(frozen=True, slots=True)
class Backoff:
    first_ms: int
    most_ms: int

    def pause_s(self, failures: int) -> float:
        """The pause after this many consecutive failures; 0 after none."""
        if failures == 0:
            return 0.0
        longer_ms = self.first_ms * 2.0 ** min(failures - 1, 30)
        return max(min(longer_ms, self.most_ms) / 1000, LEAST_BACKOFF_S)


@dataclass(frozen=True, slots=True, repr=False)
class KeysSettings:
    endpoint: Endpoint
    refresh_ms: int
    backoff: Backoff


@dataclass(frozen=True, slots=True)
class TokenRules:
    """The claims a token must have."""

    audiences: frozenset[str] = frozenset()
    issuer: str | None = None
    skew_s: int = 30
    scope_claim: str = "scope"
    name_claim: str = "sub"


@dataclass(frozen=True, slots=True, repr=False)
class OwnToken:
    """How this node gets the token it authenticates with."""

    endpoint: Endpoint
    client_id: str
    client_secret: str
    scope: str
    extensions: Mapping[str, str]
    renewed_at: float  # fraction of the token's lifetime
    backoff: Backoff
    connect_ms: int | None
    read_ms: int | None


@dataclass(frozen=True, slots=True, repr=False)
class OauthSettings:
    rules: TokenRules
    keys: KeysSettings | None  # None if this node does not listen
    own: OwnToken | None


def oauth_settings(
    listener: str, value: Value, jaas: str, options: Mapping[str, str], *, serving: bool
) -> OauthSettings:
    """`jaas` is the property the options are from. Raises ConfigError."""
    extensions = _extensions(jaas, options)
    _check_options(jaas, options)
    _check_validator(value("sasl.oauthbearer.jwt.validator.class"))
    tls = _tls_of(listener, jaas, options)
    keys = None
    if serving:
        endpoint = _endpoint(JWKS_URL, value, tls)
        if endpoint is None:
            raise ConfigError(f"{JWKS_URL} is missing: the keys that tokens are signed with are fetched from there")
        backoff = Backoff(
            value("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms"),
            value("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms"),
        )
        keys = KeysSettings(endpoint, value("sasl.oauthbearer.jwks.endpoint.refresh.ms"), backoff)
    rules = TokenRules(
        frozenset(value("sasl.oauthbearer.expected.audience") or ()),
        (value("sasl.oauthbearer.expected.issuer") or "").strip() or None,
        value("sasl.oauthbearer.clock.skew.seconds"),
        _claim("sasl.oauthbearer.scope.claim.name", value),
        _claim("sasl.oauthbearer.sub.claim.name", value),
    )
    token_endpoint = _endpoint(TOKEN_URL, value, tls)
    own = None if token_endpoint is None else _own(token_endpoint, value, options, extensions)
    return OauthSettings(rules, keys, own)


def _check_validator(name: str) -> None:
    """Both validators mean the same here: signatures are always verified."""
    if name not in JWT_VALIDATORS:
        raise ConfigError(
            f"Invalid value {name} for configuration sasl.oauthbearer.jwt.validator.class: String must be one of: "
            f"{', '.join(JWT_VALIDATORS)}"
        )


def _own(endpoint: Endpoint, value: Value, options: Mapping[str, str], extensions: Mapping[str, str]) -> OwnToken:
    said = {name: (value(name) or options.get(option, "")).strip() for name, option in IN_JAAS.items()}
    if not endpoint.is_file:
        for name in (CLIENT_ID, CLIENT_SECRET):
            if not said[name]:
                raise ConfigError(f"{name} is missing: {TOKEN_URL} asks for it")
    retriever = value("sasl.oauthbearer.jwt.retriever.class")
    if retriever != JWT_RETRIEVERS[0] and (retriever == JWT_RETRIEVERS[2]) != endpoint.is_file:
        raise ConfigError(
            f"Invalid value {retriever} for configuration sasl.oauthbearer.jwt.retriever.class: it does not go with "
            f"{TOKEN_URL}={endpoint.url}"
        )
    return OwnToken(
        endpoint,
        said[CLIENT_ID],
        said[CLIENT_SECRET],
        said[SCOPE],
        extensions,
        value("sasl.login.refresh.window.factor"),
        Backoff(value("sasl.login.retry.backoff.ms"), value("sasl.login.retry.backoff.max.ms")),
        value("sasl.login.connect.timeout.ms"),
        value("sasl.login.read.timeout.ms"),
    )


def _claim(name: str, value: Value) -> str:
    claim: str = value(name).strip()
    if not claim:
        raise ConfigError(f"{name} is empty: name a claim")
    return claim


def _endpoint(name: str, value: Value, tls: Callable[[], TlsSettings]) -> Endpoint | None:
    url = (value(name) or "").strip()
    if not url:
        return None

    def wrong(what: str) -> ConfigError:
        return ConfigError(f"Invalid value {url} for configuration {name}: {what}")

    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise wrong(str(error)) from None
    scheme = parts.scheme.lower()
    if scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise wrong("a file's URL is as file:///etc/keys.json")
        return Endpoint(name, url, scheme, "", 0, unquote(parts.path))
    if scheme not in PORTS:
        raise wrong("URLs begin with https:, http: or file:")
    if not parts.hostname or "@" in parts.netloc or any(not 0x21 <= ord(each) <= 0x7E for each in url):
        raise wrong("Value must be https://HOST:PORT/PATH")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    own_tls = tls() if scheme == "https" else None
    return Endpoint(name, url, scheme, parts.hostname, port or PORTS[scheme], path, own_tls)


# -- options of the login module --------------------------------------------------------------------------------------
def _extensions(jaas: str, options: Mapping[str, str]) -> dict[str, str]:
    found = {key.removeprefix(EXTENSION): text for key, text in options.items() if key.startswith(EXTENSION)}
    for key, text in found.items():
        if key == "auth" or not EXTENSION_KEY.fullmatch(key) or not EXTENSION_VALUE.fullmatch(text):
            raise _wrong(jaas, f"option {EXTENSION}{key} has a name or a value that no extension may have")
    return found


def _check_options(jaas: str, options: Mapping[str, str]) -> None:
    for option in options:
        if option.startswith("unsecured"):
            raise _wrong(jaas, f"option {option} makes unsigned tokens, which are not accepted")
        of_tls = option in BY_NAME and option.startswith("ssl.")
        if option not in IN_JAAS.values() and not option.startswith(EXTENSION) and not of_tls:
            raise _wrong(jaas, f"option {option} is not known here")


def _tls_of(listener: str, jaas: str, options: Mapping[str, str]) -> Callable[[], TlsSettings]:
    """As in Apache Kafka, the `ssl.…` options of the login module set whom to trust at key and token endpoints."""

    def value(name: str) -> Any:
        known = BY_NAME[name]
        return known.parse(options[name]) if name in options else known.default

    def made() -> TlsSettings:
        try:
            return tls_settings(listener, value, "none", serving=False)
        except ConfigError as error:
            raise _wrong(jaas, str(error)) from None

    return made


def _wrong(jaas: str, what: str) -> ConfigError:
    return ConfigError(f"Invalid value [hidden] for configuration {jaas}: {what}")
