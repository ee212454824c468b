"""`--command-config` with GSSAPI: obtains Kerberos tickets from a keytab or a ticket cache.

The Kerberos library finds keytab and cache by environment variables, which are set here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import ModuleType

from ballast_cli import CommandError

MODULE = "com.sun.security.auth.module.Krb5LoginModule"
SERVICE_NAME = "sasl.kerberos.service.name"
KNOWN = frozenset({SERVICE_NAME})
OPTIONS = frozenset(
    {"useKeyTab", "keyTab", "storeKey", "principal", "useTicketCache", "ticketCache", "doNotPrompt", "serviceName"}
)
IN_MEMORY = "MEMORY:ballast"
WITHOUT_LIBRARY = (
    "sasl.mechanism is GSSAPI, which needs the Python package gssapi. ./ballast installs it; it is compiled, so first\n"
    "  Debian, Ubuntu   sudo apt-get install gcc libkrb5-dev python3-dev\n"
    "  Fedora           sudo dnf install gcc krb5-devel python3-devel"
)


def login(given: Mapping[str, str], options: Mapping[str, str]) -> tuple[str, str]:
    """Obtain tickets; return our principal and the service's name. Raises CommandError if there are no tickets."""
    for option in options.keys() - OPTIONS:
        raise CommandError(f"sasl.jaas.config: option {option} is not known here")
    service = given.get(SERVICE_NAME) or options.get("serviceName")
    if not service:
        raise CommandError(f"{SERVICE_NAME} is missing: the first part of the brokers' principals, such as kafka")
    keytab, principal = options.get("keyTab"), options.get("principal")
    if options.get("useKeyTab", "").lower() == "true":
        if not keytab or not principal:
            raise CommandError("sasl.jaas.config needs keyTab and principal with useKeyTab")
        if not os.path.isfile(keytab):
            raise CommandError(f"sasl.jaas.config: there is no keytab {keytab}")
        os.environ["KRB5_CLIENT_KTNAME"], os.environ["KRB5CCNAME"] = f"FILE:{keytab}", IN_MEMORY
    elif options.get("useTicketCache", "").lower() == "true":
        if "ticketCache" in options:
            os.environ["KRB5CCNAME"] = f"FILE:{options['ticketCache']}"
    else:
        raise CommandError("sasl.jaas.config needs useKeyTab=true with keyTab and principal, or useTicketCache=true")
    return _tickets(_library(), principal), service


def _library() -> ModuleType:
    try:
        import gssapi
    except ImportError:
        raise CommandError(WITHOUT_LIBRARY) from None
    library: ModuleType = gssapi
    return library


def _tickets(gssapi: ModuleType, principal: str | None) -> str:
    name = None if principal is None else gssapi.Name(principal, gssapi.NameType.kerberos_principal)
    try:
        own = gssapi.Credentials(name=name, usage="initiate", mechs=[gssapi.MechType.kerberos])
        return str(own.name)
    except gssapi.exceptions.GSSError as error:
        said = [str(each) for each in error.get_all_statuses(error.min_code, False)]
        who = "" if principal is None else f" of {principal}"
        raise CommandError(f"there are no tickets{who}: {'; '.join(said)}") from None
