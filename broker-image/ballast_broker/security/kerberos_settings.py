"""Reads this node's Kerberos identity from `sasl.kerberos.…` and the login module's options. PURE."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ballast_broker.config_types import ConfigError
from ballast_broker.security.kerberos_names import KerberosRuleError, local_names

MODULE = "com.sun.security.auth.module.Krb5LoginModule"
SERVICE_NAME, RULES = "sasl.kerberos.service.name", "sasl.kerberos.principal.to.local.rules"
# Options with one possible value, since nodes always behave like that.
ALWAYS_SO = {"useKeyTab": "true", "storeKey": "true", "doNotPrompt": "true", "refreshKrb5Config": "true"}
NEVER_SO = {"useTicketCache": "false", "renewTGT": "false", "debug": "false"}
INSTEAD = {
    "useKeyTab": "a node is known by the key in its keytab",
    "storeKey": "a node is known by the key in its keytab",
    "useTicketCache": "a node is known by the key in its keytab, not by tickets that somebody else got",
    "debug": "the environment variable KRB5_TRACE names a file for what libkrb5 does",
}
Value = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class KerberosSettings:
    principal: str
    keytab: str
    service: str  # the service name of the nodes this one connects to
    rules: tuple[str, ...]


def kerberos_settings(value: Value, jaas: str, options: Mapping[str, str]) -> KerberosSettings:
    """`jaas` is the property the options are from. Raises ConfigError."""
    _check_options(jaas, options)
    principal = options["principal"]
    service, separator, rest = principal.partition("/")
    host = rest.partition("@")[0]
    if not service or not separator or not host or "/" in rest:
        raise _wrong(jaas, f"principal {principal} is none of a service: it is as in kafka/HOST@REALM")
    return KerberosSettings(principal, options["keyTab"], _service(value, jaas, options), _rules(value))


def without_keytab(jaas: str) -> str:
    return (
        f"{jaas} is missing: it says as whom this node is known to Kerberos, as in {MODULE} required "
        'useKeyTab=true storeKey=true keyTab="/etc/ballast/node.keytab" principal="kafka/HOST@REALM";'
    )


def _service(value: Value, jaas: str, options: Mapping[str, str]) -> str:
    said, in_jaas = (value(SERVICE_NAME) or "").strip(), options.get("serviceName", "")
    if said and in_jaas and said != in_jaas:
        raise _wrong(jaas, f"serviceName is {in_jaas}, and {SERVICE_NAME} is {said}")
    if not said and not in_jaas:
        raise ConfigError(f"{SERVICE_NAME} is missing: the first part of the brokers' principals, such as kafka")
    return said or in_jaas


def _rules(value: Value) -> tuple[str, ...]:
    rules = tuple(value(RULES))
    try:
        local_names(rules, "")
    except KerberosRuleError as error:
        raise ConfigError(f"Invalid value {','.join(rules)} for configuration {RULES}: {error}") from None
    return rules


def _check_options(jaas: str, options: Mapping[str, str]) -> None:
    for option, said in options.items():
        only = ALWAYS_SO.get(option) or NEVER_SO.get(option)
        if only is not None and said.lower() != only:
            instead = f": {INSTEAD[option]}" if option in INSTEAD else ""
            raise _wrong(jaas, f"option {option} can only be {only} here{instead}")
        if only is None and option not in ("keyTab", "principal", "serviceName"):
            raise _wrong(jaas, f"option {option} is not known here")
    for option in ("keyTab", "principal"):
        if not options.get(option):
            raise _wrong(jaas, f"option {option} is missing")
    for option in ("useKeyTab", "storeKey"):
        if option not in options:
            raise _wrong(jaas, f"option {option}=true is missing: {INSTEAD[option]}")


def _wrong(jaas: str, what: str) -> ConfigError:
    return ConfigError(f"Invalid value [hidden] for configuration {jaas}: {what}")
