"""From the properties of listeners to what the network is given: contexts of TLS, users, this node's own login."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from ballast_broker.config import BrokerConfig
from ballast_broker.config_types import ConfigError
from ballast_broker.net.going import Going, Login
from ballast_broker.net.sasl import FindCredential, FindToken, SaslListener
from ballast_broker.net.secured import Access
from ballast_broker.security.oauth_settings import Endpoint, KeysSettings, OauthSettings, OwnToken
from ballast_broker.security.properties import OAUTHBEARER
from ballast_broker.security.tls import TlsContexts

if TYPE_CHECKING:
    from ballast_broker.net.oauth import TokenChecker
    from ballast_broker.net.own_token import OwnTokens
    from ballast_broker.net.token_keys import TokenKeys


def accesses(config: BrokerConfig, find: FindCredential, find_token: FindToken) -> dict[str, Access]:
    """Of the listeners that are not open to everybody. ConfigError where a certificate or a file with keys cannot be
    used. Within the loop, which asks for the keys of tokens from then on."""
    found = {}
    for endpoint in config.listeners_all:
        wanted = config.listener_security[endpoint.name]
        tls = None if wanted.tls is None else TlsContexts(wanted.tls, monotonic, server=True)
        sasl = None
        if wanted.sasl is not None:
            oauth = None if wanted.sasl.oauth is None else _token_checker(wanted.sasl.oauth)
            sasl = SaslListener(
                wanted.sasl.mechanisms,
                wanted.sasl.plain_users,
                find,
                find_token=find_token,
                failure_delay_s=config.connection_failed_authentication_delay_ms / 1000,
                max_reauth_ms=wanted.sasl.max_reauth_ms,
                max_reauth_ms_of=wanted.sasl.max_reauth_ms_of,
                begin_oauth=None if oauth is None else oauth.begin,
            )
        if tls is not None or sasl is not None:
            found[endpoint.name] = Access(tls, sasl)
    return found


def going(config: BrokerConfig, listener: str, mechanism: str) -> Going:
    """How this node goes to such a listener of others."""
    wanted = config.listener_security.get(listener)
    if wanted is None:  # a controller alone goes to no broker
        return Going()
    tls = None if wanted.tls is None else TlsContexts(wanted.tls, monotonic, server=False)
    login = None
    if wanted.sasl is not None and mechanism in wanted.sasl.own:
        login = Login(mechanism, *wanted.sasl.own[mechanism])
    elif mechanism == OAUTHBEARER and wanted.sasl is not None and wanted.sasl.oauth is not None:
        own = wanted.sasl.oauth.own
        login = None if own is None else Login(mechanism, "", "", tokens=_own_tokens(own))
    return Going(tls, login)


# What checks signatures is imported only where tokens are to be checked: without it a node starts sooner.
def _token_checker(wanted: OauthSettings) -> TokenChecker | None:
    if wanted.keys is None:
        return None
    from ballast_broker.net.oauth import TokenChecker

    return TokenChecker(_token_keys(wanted.keys), wanted.rules)


def _token_keys(wanted: KeysSettings) -> TokenKeys:
    from ballast_broker.net.remote import RemoteError
    from ballast_broker.net.token_keys import TokenKeys
    from ballast_broker.security.tokens import KeySetError, keys_of

    keys = TokenKeys(wanted, keys_of)
    if wanted.endpoint.is_file:
        try:
            keys.read_file()
        except (RemoteError, KeySetError) as error:
            raise _unusable(wanted.endpoint, error) from None
    keys.start()
    return keys


def _own_tokens(wanted: OwnToken) -> OwnTokens:
    from ballast_broker.net.own_token import OwnTokens
    from ballast_broker.net.remote import RemoteError

    tokens = OwnTokens(wanted)
    if wanted.endpoint.is_file:
        try:
            tokens.read_file()
        except RemoteError as error:
            raise _unusable(wanted.endpoint, error) from None
    return tokens


def _unusable(endpoint: Endpoint, error: Exception) -> ConfigError:
    return ConfigError(f"Invalid value {endpoint.url} for configuration {endpoint.asked_by}: {error}")
