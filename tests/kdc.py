"""Runs a real KDC (MIT Kerberos) with its own realm on loopback; its database is in a folder."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from e2e.processes import free_ports

REALM = "EXAMPLE.COM"
WITHIN_S = 30.0
JAAS = "com.sun.security.auth.module.Krb5LoginModule required"


class Kdc:
    """A KDC. Processes find it with the variables in `environment`, Java with the options in `java`."""

    def __init__(self, folder: Path, *, ticket_life: str = "1h", skew_s: int = 300) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        (self.port,) = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None
        config = folder / "krb5.conf"
        config.write_text(
            f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n"
            " dns_canonicalize_hostname = false\n rdns = false\n"
            f" clockskew = {skew_s}\n"
            f"[realms]\n {REALM} = {{\n  kdc = 127.0.0.1:{self.port}\n }}\n"
        )
        (folder / "kdc.conf").write_text(
            f"[kdcdefaults]\n kdc_listen = 127.0.0.1:{self.port}\n kdc_tcp_listen = 127.0.0.1:{self.port}\n"
            f"[realms]\n {REALM} = {{\n  database_name = {folder}/principal\n  key_stash_file = {folder}/stash\n"
            f"  acl_file = {folder}/acl\n  max_life = {ticket_life}\n"
            "  supported_enctypes = aes256-cts-hmac-sha1-96:normal aes128-cts-hmac-sha1-96:normal\n }\n"
            f"[logging]\n kdc = FILE:{folder}/kdc.log\n admin_server = FILE:{folder}/admin.log\n"
        )
        self.environment = {
            "KRB5_CONFIG": str(config),
            "KRB5_KDC_PROFILE": str(folder / "kdc.conf"),
            "KRB5CCNAME": f"FILE:{folder}/nobody",  # not the tickets of the user who runs the tests
            "KRB5RCACHENAME": f"file2:{folder}/rcache",
        }
        self.java = (f"-Djava.security.krb5.conf={config}", "-Djavax.security.auth.useSubjectCredsOnly=true")
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master")

    def _run(self, command: str, *arguments: str) -> None:
        where = {**os.environ, **self.environment, "PATH": f"{os.environ['PATH']}:/usr/sbin"}
        done = subprocess.run(
            [command, *arguments], env=where, capture_output=True, text=True, timeout=WITHIN_S, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def keytab(self, *principals: str) -> Path:
        """Create these principals; return a keytab with new keys for them."""
        file = self._folder / f"{'-'.join(principals).replace('/', '_')}.keytab"
        for each in principals:
            self._run("kadmin.local", "-q", f"addprinc -randkey {each}")
        self._run("kadmin.local", "-q", f"ktadd -k {file} {' '.join(principals)}")
        return file

    def new_key(self, principal: str, file: Path) -> None:
        """Add a new key to the keytab, beside the old one; tickets use it from now on."""
        self._run("kadmin.local", "-q", f"ktadd -k {file} {principal}")

    def forget(self, principal: str) -> None:
        self._run("kadmin.local", "-q", f"delprinc -force {principal}")

    def start(self) -> None:
        where = {**os.environ, **self.environment, "PATH": f"{os.environ['PATH']}:/usr/sbin"}
        self._process = subprocess.Popen(
            ["krb5kdc", "-n", "-r", REALM], env=where, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + WITHIN_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                assert self._process.poll() is None, (self._folder / "kdc.log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.02)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(WITHIN_S)
            self._process = None

    def tickets_given(self, client: str, service: str) -> int:
        """How many tickets for `service` this client got."""
        log = (self._folder / "kdc.log").read_text()
        return sum("ISSUE: authtime" in line and f"{client}@{REALM} for {service}" in line for line in log.splitlines())


def context(principal: str, keytab: Path, service: str = "kafka@localhost") -> Any:
    """The client's end of a GSSAPI exchange, for tests that send its messages themselves and may alter each."""
    import gssapi

    name = gssapi.Name(f"{principal}@{REALM}", gssapi.NameType.kerberos_principal)
    store = {"client_keytab": f"FILE:{keytab}", "ccache": f"MEMORY:{uuid.uuid4()}"}
    own = gssapi.Credentials(name=name, usage="initiate", store=store)
    to = gssapi.Name(service, gssapi.NameType.hostbased_service)
    flags = gssapi.RequirementFlag.mutual_authentication
    return gssapi.SecurityContext(name=to, creds=own, usage="initiate", mech=gssapi.MechType.kerberos, flags=flags)


@contextmanager
def running(folder: Path, **how: Any) -> Iterator[Kdc]:
    kdc = Kdc(folder, **how)
    kdc.start()
    try:
        yield kdc
    finally:
        kdc.stop()


def login_module(principal: str, keytab: Path, **more: str) -> str:
    options = {"useKeyTab": "true", "storeKey": "true", "keyTab": str(keytab), "principal": f"{principal}@{REALM}"}
    said = " ".join(f'{name}="{value}"' for name, value in (options | more).items())
    return f"{JAAS} {said};"


def of_listener(listener: str, module: str) -> Mapping[str, str]:
    return {f"listener.name.{listener.lower()}.gssapi.sasl.jaas.config": module}
