"""What benches keep out of their figures (`bench/machine.py`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from bench import machine

ROOT = Path(__file__).resolve().parent.parent.parent
USE = """
import os, socket
from bench import machine
before = os.readlink("/proc/self/ns/net")
machine.use_unpaced_network()
with socket.create_server(("127.0.0.1", 0)) as server:
    socket.create_connection(server.getsockname(), timeout=10).close()
print(machine.CONTROL.read_text().strip(), os.readlink("/proc/self/ns/net") == before)
"""


def test_a_bench_has_a_network_that_does_not_pace_streams() -> None:
    paced = machine.CONTROL.read_text().startswith(machine.PACED)
    done = subprocess.run([sys.executable, "-c", USE], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    control, same_network = done.stdout.split()
    may_make_one = subprocess.run(["unshare", "--net", "true"], capture_output=True, timeout=60, check=False)
    if paced and os.geteuid() == 0 and may_make_one.returncode == 0:
        assert control in machine.UNPACED
        assert same_network == "False"
        assert "network of its own" in done.stderr
    else:
        assert same_network == "True"
        assert ("paces" in done.stderr) is paced


def test_memory_is_touched_and_given_back() -> None:
    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = resident_bytes()
    machine.touch_memory(64 << 20)
    assert resident_bytes() < before + (32 << 20)
