"""Allocates loopback addresses to pods and services.

On Linux all of 127/8 can be bound, so every pod has an address of its own and ports never collide. An address belongs
to a name (`pod/NAMESPACE/NAME`), so a recreated pod of the same name has the same address. On other systems there is
only 127.0.0.1: pods share it, and two that declare the same port cannot run at the same time.
"""

import errno
import hashlib
import json
import logging
import socket
import sys
from pathlib import Path

LOG = logging.getLogger("ballast.local")
SHARED = "127.0.0.1"
NO_PODS = "127.63.0.1"  # outside of the pods' range


class Addresses:
    def __init__(self, path: Path, salt: str, many: bool = sys.platform == "linux") -> None:
        self._path, self._salt, self.many = path, salt, many
        self._held = _read(path)
        self._taken = set(self._held.values())
        self._behind = False
        _write(path, self._held)

    def take(self, name: str) -> str:
        """Return the address of a name; allocates one if it has none."""
        if not self.many:
            return SHARED
        held = self._held.get(name)
        if held is None:
            held = self._held[name] = self._free(name)
            self._taken.add(held)
            self._append(name, held)
        return held

    def release(self, name: str) -> None:
        held = self._held.pop(name, None)
        if held is not None:
            self._taken.discard(held)
            self._append(name, None)

    def _free(self, name: str) -> str:
        """Choose a free address by hash, so that clusters on the same machine do not collide."""
        digest = hashlib.sha256(f"{self._salt}/{name}".encode()).digest()
        start = int.from_bytes(digest[:4], "big")
        for step in range(1 << 16):
            number = (start + step * 7919) & 0x3FFFFF
            candidate = f"127.{64 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"
            if number & 255 not in (0, 255) and candidate not in self._taken:
                return candidate
        raise RuntimeError("no free loopback address")

    def _append(self, name: str, address: str | None) -> None:
        """Append to the journal. If this fails (disk full) the change still holds, and is written with the next one."""
        try:
            if self._behind:
                _write(self._path, self._held)
            else:
                with self._path.open("a") as file:
                    file.write(json.dumps([name, address]) + "\n")
            self._behind = False
        except OSError as fault:
            self._behind = True
            LOG.warning("the address of %s is not written down: %s", name, fault)


def taken_everywhere(port: int) -> bool:
    """Whether a process listens on this port on all addresses (as Java does by default), so that no pod can bind it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((NO_PODS, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def _read(path: Path) -> dict[str, str]:
    """Replay the journal: the last line of every name counts; a torn last line is ignored."""
    held: dict[str, str] = {}
    for line in path.read_text().splitlines() if path.is_file() else []:
        try:
            name, address = json.loads(line)
        except ValueError:
            continue
        if address is None:
            held.pop(name, None)
        else:
            held[name] = address
    return held


def _write(path: Path, held: dict[str, str]) -> None:
    """Rewrite the journal with the current addresses only."""
    temporary = path.with_suffix(".new")
    temporary.write_text("".join(json.dumps([name, address]) + "\n" for name, address in held.items()))
    temporary.replace(path)
