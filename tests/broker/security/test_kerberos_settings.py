"""The Kerberos properties, and the errors where Kerberos is not available."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from ballast_broker import net
from ballast_broker.config.broker import BrokerConfig, broker_config
from ballast_broker.config_types import ConfigError
from ballast_broker.security.kerberos_settings import KerberosSettings
from ballast_broker.security_settings import accesses, outgoing

pytestmark = pytest.mark.spec("CLI-12")
MODULE = "com.sun.security.auth.module.Krb5LoginModule required"
PRINCIPAL = "kafka/localhost@EXAMPLE.COM"
RIGHT = f'{MODULE} useKeyTab=true storeKey=true keyTab="/k" principal="{PRINCIPAL}";'
JAAS = "listener.name.safe.gssapi.sasl.jaas.config"
BASE = {
    "node.id": "1",
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.voters": "1@localhost:9094",
    "log.dirs": "/d",
    "listeners": "SAFE://localhost:9092,CONTROLLER://localhost:9094",
    "listener.security.protocol.map": "SAFE:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "SAFE",
    "sasl.kerberos.service.name": "kafka",
    JAAS: RIGHT,
}


def config(**changes: str | None) -> BrokerConfig:
    """A config with changes; in their names, underscores stand for dots."""
    merged = BASE | {name.replace("_", "."): value for name, value in changes.items()}
    return broker_config({name: value for name, value in merged.items() if value is not None})


def kerberos(found: BrokerConfig, listener: str = "SAFE") -> KerberosSettings | None:
    sasl = found.listener_security[listener].sasl
    assert sasl is not None
    return sasl.kerberos


def test_gssapi_is_what_a_listener_asks_for_that_says_nothing_as_with_apache_kafka() -> None:
    assert kerberos(config()) == KerberosSettings(PRINCIPAL, "/k", "kafka", ("DEFAULT",))


def test_a_listener_has_rules_and_a_service_of_its_own() -> None:
    rules = "RULE:[1:$1@$0](.*@OTHER)s/@.*//,DEFAULT"
    found = config(
        sasl_kerberos_principal_to_local_rules="DEFAULT",
        listener_name_safe_sasl_kerberos_principal_to_local_rules=rules,
        listener_name_safe_sasl_kerberos_service_name="other",
    )
    assert kerberos(found) == KerberosSettings(PRINCIPAL, "/k", "other", tuple(rules.split(",")))
    in_jaas = RIGHT.replace(";", " serviceName=mine;")
    said = kerberos(config(sasl_kerberos_service_name=None, **{JAAS: in_jaas}))
    assert said is not None
    assert said.service == "mine"


def test_controllers_are_reached_with_the_key_as_well() -> None:
    found = config(
        listener_security_protocol_map="SAFE:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        **{JAAS.replace("safe", "controller"): RIGHT.replace("/k", "/c")},
    )
    of_controllers = kerberos(found, "CONTROLLER")
    assert of_controllers is not None
    assert of_controllers.keytab == "/c"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {JAAS: None},
            f'{JAAS} is missing: it says as whom .* {MODULE} useKeyTab=true .* principal="kafka/HOST@REALM";',
        ),
        ({"sasl.kerberos.service.name": None}, "sasl.kerberos.service.name is missing"),
        ({"sasl.kerberos.principal.to.local.rules": "RULE:[1"}, r"Invalid value RULE:\[1 for .*: Invalid rule: RULE"),
        (
            {JAAS: RIGHT.replace(";", " serviceName=mine;")},
            "serviceName is mine, and sasl.kerberos.service.name is kaf",
        ),
        ({JAAS: RIGHT.replace(MODULE, "x.LoginModule required")}, "the login module of GSSAPI is com.sun.security"),
        ({JAAS: RIGHT.replace('keyTab="/k"', "")}, "option keyTab is missing"),
        ({JAAS: RIGHT.replace(f'principal="{PRINCIPAL}"', "")}, "option principal is missing"),
        ({JAAS: RIGHT.replace(PRINCIPAL, "kafka@EXAMPLE.COM")}, "principal kafka@EXAMPLE.COM is none of a service"),
        ({JAAS: RIGHT.replace("useKeyTab=true", "")}, "option useKeyTab=true is missing"),
        ({JAAS: RIGHT.replace("storeKey=true", "storeKey=false")}, "option storeKey can only be true here"),
        ({JAAS: RIGHT.replace(";", " useTicketCache=true;")}, "useTicketCache can only be false here: a node is known"),
        ({JAAS: RIGHT.replace(";", " debug=true;")}, "option debug can only be false here: .* KRB5_TRACE"),
        ({JAAS: RIGHT.replace(";", " isInitiator=false;")}, "option isInitiator is not known here"),
    ],
)
def test_what_is_not_understood_is_refused_with_what_to_do(changes: dict[str, str | None], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        config(**changes)


def test_what_has_no_effect_is_told() -> None:
    names = ["kinit.cmd", "min.time.before.relogin", "ticket.renew.jitter", "ticket.renew.window.factor"]
    told = config(**{f"sasl.kerberos.{name}": "1" for name in names}).warnings
    assert told == tuple(f"property sasl.kerberos.{name} has no effect in Ballast" for name in names)


def test_without_the_library_a_node_does_not_start_and_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    monkeypatch.delitem(sys.modules, "ballast_broker.net.kerberos", raising=False)
    monkeypatch.delattr(net, "kerberos", raising=False)

    def nobody(*_: Any) -> None:
        return None

    for begun in (
        lambda: accesses(config(), nobody, nobody),
        lambda: outgoing(config(), "SAFE", "GSSAPI"),
    ):
        with pytest.raises(ConfigError, match=r"(?s)GSSAPI needs the Python package gssapi.*libkrb5-dev") as raised:
            begun()
        assert "krb5-devel" in str(raised.value)
