"""Creates what the network needs from listener properties: TLS contexts, SASL users, this node's own login."""

from __future__ import annotations

from time import monotonic
from types import ModuleType
from typing import TYPE_CHECKING

from ballast_broker.config.broker import BrokerConfig
from ballast_broker.config_types import ConfigError
from ballast_broker.net.outgoing import Login, Outgoing
from ballast_broker.net.sasl import (
    MAX_FRAME_BYTES,
    MAX_FRAME_BYTES_WITH_TICKETS,
    Begin,
    FindCredential,
    FindToken,
    SaslListener,
)
from ballast_broker.net.secured import Access
from ballast_broker.security.kerberos_settings import KerberosSettings
from ballast_broker.security.oauth_settings import Endpoint, KeysSettings, OauthSettings, OwnToken
from ballast_broker.security.properties import GSSAPI, OAUTHBEARER
from ballast_broker.security.settings import SaslSettings
from ballast_broker.security.tls import BetweenNodes, TlsContexts

if TYPE_CHECKING:
    from ballast_broker.net.kerberos import KerberosListener
    from ballast_broker.net.oauth import TokenChecker
    from ballast_broker.net.own_token import OwnTokens
    from ballast_broker.net.token_keys import TokenKeys

WITHOUT_KERBEROS = (
    "GSSAPI needs the Python package gssapi, which cannot be imported ({}). ./ballast broker installs it where a file "
    "of properties names GSSAPI; it is compiled, so first:\n"
    "  Debian, Ubuntu   sudo apt-get install gcc libkrb5-dev python3-dev\n"
    "  Fedora           sudo dnf install gcc krb5-devel python3-devel\n"
    "Elsewhere: pip install --require-hashes --no-build-isolation --requirement requirements/kerberos.lock, after "
    "requirements/kerberos-build.lock"
)


def accesses(config: BrokerConfig, find: FindCredential, find_token: FindToken) -> dict[str, Access]:
    """The access control of the listeners that have any. ConfigError if a certificate or key file is unusable.

    Call it within the event loop, which fetches token keys from then on.
    """
    found = {}
    for endpoint in config.listeners_all:
        wanted = config.listener_security[endpoint.name]
        tls = _contexts(config, endpoint.name, server=True)
        sasl = None
        if wanted.sasl is not None:
            sasl = SaslListener(
                wanted.sasl.mechanisms,
                wanted.sasl.plain_users,
                find,
                find_token=find_token,
                failure_delay_s=config.connection_failed_authentication_delay_ms / 1000,
                max_reauth_ms=wanted.sasl.max_reauth_ms,
                max_reauth_ms_of=wanted.sasl.max_reauth_ms_of,
                begin_of=_begin_of(wanted.sasl),
                frame_bytes=MAX_FRAME_BYTES_WITH_TICKETS if GSSAPI in wanted.sasl.mechanisms else MAX_FRAME_BYTES,
            )
        if tls is not None or sasl is not None:
            found[endpoint.name] = Access(tls, sasl)
    return found


def _contexts(config: BrokerConfig, listener: str, *, server: bool) -> TlsContexts | None:
    tls = config.listener_security[listener].tls
    if tls is None:
        return None
    between = _between(config, listener) if tls.keystore.is_there else None
    return TlsContexts(tls, monotonic, server=server, between=between)


def _between(config: BrokerConfig, listener: str) -> BetweenNodes | None:
    """The requirements on a new certificate of a listener through which nodes reach each other."""
    if listener not in config.controller_names and listener != config.inter_broker_listener:
        return None
    if listener in config.controller_names:
        return BetweenNodes(next((each.host for each in config.voters if each.node_id == config.node_id), None))
    return BetweenNodes(next((each.host or None for each in config.advertised if each.name == listener), None))


def outgoing(config: BrokerConfig, listener: str, mechanism: str) -> Outgoing:
    """How this node connects to such a listener of other nodes."""
    wanted = config.listener_security.get(listener)
    if wanted is None:  # a mere controller connects to no broker
        return Outgoing()
    tls = _contexts(config, listener, server=False)
    login = None
    if wanted.sasl is not None and mechanism in wanted.sasl.own:
        login = Login(mechanism, *wanted.sasl.own[mechanism])
    elif mechanism == OAUTHBEARER and wanted.sasl is not None and wanted.sasl.oauth is not None:
        own = wanted.sasl.oauth.own
        login = None if own is None else Login(mechanism, "", "", tokens=_own_tokens(own))
    elif mechanism == GSSAPI and wanted.sasl is not None and wanted.sasl.kerberos is not None:
        login = _known_to_kerberos(wanted.sasl.kerberos)
    return Outgoing(tls, login)


def _begin_of(wanted: SaslSettings) -> dict[str, Begin]:
    found: dict[str, Begin] = {}
    if wanted.oauth is not None and (checker := _token_checker(wanted.oauth)) is not None:
        found[OAUTHBEARER] = checker.begin
    if wanted.kerberos is not None:
        found[GSSAPI] = _kerberos_listener(wanted.kerberos).begin
    return found


# Modules for tokens and Kerberos are imported only where needed: a node starts faster without.
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


def _kerberos() -> ModuleType:
    try:
        from ballast_broker.net import kerberos
    except ImportError as error:
        raise ConfigError(WITHOUT_KERBEROS.format(error)) from None
    return kerberos


def _kerberos_listener(wanted: KerberosSettings) -> KerberosListener:
    kerberos = _kerberos()
    try:
        listener: KerberosListener = kerberos.KerberosListener(wanted)
    except kerberos.KerberosError as error:
        raise _keyless(wanted, error) from None
    return listener


def _known_to_kerberos(wanted: KerberosSettings) -> Login:
    kerberos = _kerberos()
    try:
        return Login(GSSAPI, wanted.principal, "", tickets=kerberos.OwnTickets(wanted))
    except kerberos.KerberosError as error:
        raise _keyless(wanted, error) from None


def _keyless(wanted: KerberosSettings, error: Exception) -> ConfigError:
    return ConfigError(f"GSSAPI as {wanted.principal}: {error}")
