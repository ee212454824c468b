"""`--command-config FILE`: how to connect to a secured cluster, as properties of Kafka's own clients."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ballast_cli import CommandError

if TYPE_CHECKING:
    from ballast_operator.kafka_client import ConnectionSettings

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
PLAIN, OAUTHBEARER, GSSAPI = "PLAIN", "OAUTHBEARER", "GSSAPI"
MODULES = {
    PLAIN: "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    OAUTHBEARER: "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
    GSSAPI: "com.sun.security.auth.module.Krb5LoginModule",
}
KNOWN = frozenset(
    {
        "security.protocol", "sasl.mechanism", "sasl.jaas.config", "ssl.endpoint.identification.algorithm",
        "ssl.key.password", "ssl.keystore.certificate.chain", "ssl.keystore.key", "ssl.keystore.location",
        "ssl.keystore.password", "ssl.keystore.type", "ssl.truststore.certificates", "ssl.truststore.location",
        "ssl.truststore.password", "ssl.truststore.type",
    }
)  # fmt: skip


def add_argument(parser: Any) -> None:
    parser.add_argument(
        "--command-config",
        type=Path,
        metavar="FILE",
        help="Kafka client properties: TLS, user and password, token, Kerberos",
    )


def connection(args: argparse.Namespace) -> ConnectionSettings:
    """How to connect to the arguments' `--bootstrap`."""
    return settings_of(args.bootstrap, args.command_config)


def library_options(args: argparse.Namespace, client_id: str) -> dict[str, Any]:
    """The same as options of kafka-python, without the addresses; empty if there is no `--command-config`."""
    from ballast_operator.kafka_client import client_options

    if args.command_config is None:
        return {}
    settings = settings_of(args.bootstrap, args.command_config)
    try:
        options = client_options(settings)
    except OSError as error:  # includes ssl.SSLError
        raise CommandError(f"{args.command_config}: what it names cannot be used: {error}") from error
    security = ("security_protocol", "sasl_", "ssl_", "bootstrap_timeout_ms")
    kept = {name: value for name, value in options.items() if name.startswith(security)}
    return kept | {"client_id": client_id}


def settings_of(bootstrap: str, file: Path | None) -> ConnectionSettings:
    from ballast_operator.kafka_client import ConnectionSettings

    if file is None:
        return ConnectionSettings(bootstrap)
    try:
        from ballast_broker.config.properties_file import parse_properties, text_of
    except ModuleNotFoundError:  # no broker runs in the image of the Spark job
        why = "--command-config is not in the image of the Spark job: use ./ballast in a checkout"
        raise CommandError(why) from None

    try:
        given = parse_properties(text_of(file.read_bytes()))
    except OSError as error:
        raise CommandError(f"--command-config {file}: {error.strerror}") from error
    try:
        return _settings(bootstrap, given)
    except CommandError as error:
        raise CommandError(f"--command-config {file}: {error}") from None


def _settings(bootstrap: str, given: Mapping[str, str]) -> ConnectionSettings:
    from ballast_operator.kafka_client import ConnectionSettings

    protocol = given.get("security.protocol", "PLAINTEXT")
    known = KNOWN
    if protocol.startswith("SASL") and given.get("sasl.mechanism") == OAUTHBEARER:
        from ballast_cli import command_token

        known |= command_token.KNOWN
    if protocol.startswith("SASL") and given.get("sasl.mechanism", GSSAPI) == GSSAPI:
        from ballast_cli import command_kerberos

        known |= command_kerberos.KNOWN
    for name in given:
        if name not in known:
            print(f"--command-config: {name} has no effect here", file=sys.stderr)
    if protocol not in PROTOCOLS:
        raise CommandError(f"security.protocol is {protocol}: there are {', '.join(PROTOCOLS)}")
    how: dict[str, Any] = {}
    if protocol.endswith("SSL"):
        how |= _tls(given)
    if protocol.startswith("SASL"):
        how |= _sasl(given)
    return ConnectionSettings(bootstrap, **how)


def _tls(given: Mapping[str, str]) -> dict[str, Any]:
    algorithm = given.get("ssl.endpoint.identification.algorithm", "https")
    if algorithm not in ("https", ""):
        raise CommandError(f"ssl.endpoint.identification.algorithm is {algorithm}: it is https, or nothing")
    keystore = _store(given, "keystore")
    if keystore is None and "ssl.keystore.certificate.chain" in given:
        if "ssl.keystore.key" not in given:
            raise CommandError("ssl.keystore.certificate.chain is given without ssl.keystore.key")
        keystore = f"{given['ssl.keystore.key']}\n{given['ssl.keystore.certificate.chain']}"
    trusted = _store(given, "truststore")
    return {
        "tls": True,
        "verify_hostname": algorithm == "https",
        "ca_pem": trusted or given.get("ssl.truststore.certificates"),
        "certificate_pem": keystore,
        "key_pem": keystore,
        "key_password": given.get("ssl.key.password"),
    }


def _store(given: Mapping[str, str], which: str) -> str | None:
    """The key store or trust store as PEM; Java's formats are converted."""
    from ballast_broker.security.tls_settings import PEM, STORE_TYPES

    location, kind = f"ssl.{which}.location", given.get(f"ssl.{which}.type", "JKS").upper()
    path = given.get(location)
    if path is None:
        return None
    if kind not in STORE_TYPES:
        raise CommandError(f"ssl.{which}.type is {kind}: there are {', '.join(STORE_TYPES)}")
    try:
        data = Path(path).read_bytes()
        return data.decode() if kind == PEM else _java_store(given, which, data)
    except (OSError, ValueError) as error:
        raise CommandError(f"{location} {path}: {getattr(error, 'strerror', None) or error}") from error


def _java_store(given: Mapping[str, str], which: str, data: bytes) -> str:
    from ballast_broker.security.java_stores import keystore_pem, truststore_pem

    password = given.get(f"ssl.{which}.password")
    if which == "truststore":
        return truststore_pem(data, password)
    return keystore_pem(data, password, given.get("ssl.key.password"))


def _sasl(given: Mapping[str, str]) -> dict[str, Any]:
    mechanism = given.get("sasl.mechanism", GSSAPI)
    if mechanism not in MODULES:
        raise CommandError(f"sasl.mechanism is {mechanism}: there are {', '.join(MODULES)}")
    options = _login_options(mechanism, given)
    if mechanism == OAUTHBEARER:
        from ballast_cli.command_token import tokens

        return {"sasl_mechanism": mechanism, "tokens": tokens(given, options)}
    if mechanism == GSSAPI:
        from ballast_cli.command_kerberos import login

        principal, service = login(given, options)
        return {"sasl_mechanism": mechanism, "username": principal, "service": service}
    if not {"username", "password"} <= options.keys():
        raise CommandError("sasl.jaas.config needs username and password")
    user, password = options["username"], options["password"]
    if mechanism != PLAIN:
        from ballast_cli.command_scram import TokenId, use_for_scram

        use_for_scram()
        if options.get("tokenauth", "").lower() == "true":
            user = TokenId(user)
    return {"sasl_mechanism": mechanism, "username": user, "password": password}


def _login_options(mechanism: str, given: Mapping[str, str]) -> Mapping[str, str]:
    from ballast_broker.security.jaas import JaasError, parse_login_module

    text = given.get("sasl.jaas.config")
    if text is None and mechanism == OAUTHBEARER:
        return {}  # optional: each of its options has a property as well
    try:
        module = parse_login_module(text or "")
    except JaasError as error:
        raise CommandError(f"sasl.jaas.config: {error}") from None
    if module.name != MODULES[mechanism]:
        raise CommandError(f"sasl.jaas.config: the login module of {mechanism} is {MODULES[mechanism]}")
    return module.options
