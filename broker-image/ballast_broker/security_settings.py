"""From the properties of listeners to what the network is given: contexts of TLS, users, this node's own login."""

from __future__ import annotations

from time import monotonic

from ballast_broker.config import BrokerConfig
from ballast_broker.net.going import Going, Login
from ballast_broker.net.sasl import FindCredential, SaslListener
from ballast_broker.net.secured import Access
from ballast_broker.security.tls import TlsContexts


def accesses(config: BrokerConfig, find: FindCredential) -> dict[str, Access]:
    """Of the listeners that are not open to everybody. ConfigError where a certificate cannot be used."""
    found = {}
    for endpoint in config.listeners_all:
        wanted = config.listener_security[endpoint.name]
        tls = None if wanted.tls is None else TlsContexts(wanted.tls, monotonic, server=True)
        sasl = None
        if wanted.sasl is not None:
            sasl = SaslListener(
                wanted.sasl.mechanisms,
                wanted.sasl.plain_users,
                find,
                failure_delay_s=config.connection_failed_authentication_delay_ms / 1000,
                max_reauth_ms=wanted.sasl.max_reauth_ms,
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
    return Going(tls, login)
