"""Measures how long a broker takes to start in an image, by running it in the image's read-only root file system.

The time is from the start of the process to the first accepted connection. Needs root; leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from ballast_cli.image_contents import USER, Flavour

LIMIT_SECONDS = 60.0
# Runs in a mount namespace of its own: the layers, a writable /tmp, and the broker as the image's user.
SCRIPT = """
set -e
mount -t overlay overlay -o ro,lowerdir="$1" "$2"
mount -t tmpfs -o mode=1777 tmpfs "$2/tmp"
mount --bind /dev "$2/dev"
cp "$3" "$2/tmp/broker.properties"
shift 3
exec setpriv --pdeathsig KILL chroot --userspec="$USERSPEC" "$MERGED" \\
  /usr/local/bin/ballast broker /tmp/broker.properties
"""


class StartError(Exception):
    """The start could not be measured; the text says why."""


def broker_start_seconds(base: Path, layers: Sequence[Path]) -> float:
    with tempfile.TemporaryDirectory(prefix="ballast-image-") as place:
        folder = Path(place)
        for index, layer in enumerate(layers):
            with tarfile.open(layer) as archive:
                archive.extractall(folder / str(index), filter="tar")
        merged = folder / "merged"
        merged.mkdir()
        port = _free_port()
        properties = folder / "broker.properties"
        properties.write_text(_properties(port, _free_port()))
        stacked = ":".join(str(folder / str(index)) for index in reversed(range(len(layers))))
        return _measure([f"{stacked}:{base}", str(merged), str(properties)], merged, port)


def _measure(arguments: list[str], merged: Path, port: int) -> float:
    environment = dict(pair.split("=", 1) for pair in Flavour.BROKER.settings("")["config"]["Env"])
    environment |= {"USERSPEC": f"{USER}:{USER}", "MERGED": str(merged), "PATH": os.environ["PATH"]}
    command = ["unshare", "--mount", "sh", "-c", SCRIPT, "start", *arguments]
    began = time.monotonic()
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        while time.monotonic() < began + LIMIT_SECONDS:
            if process.poll() is not None:
                said = process.stdout.read() if process.stdout else ""
                raise StartError(f"it ended: {said.strip()[-500:]}")
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return time.monotonic() - began
            time.sleep(0.005)
        raise StartError(f"it did not answer within {LIMIT_SECONDS:.0f} s")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _properties(port: int, controller: int) -> str:
    return f"""node.id=0
process.roles=broker,controller
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.quorum.voters=0@127.0.0.1:{controller}
log.dirs=/tmp/data
"""
