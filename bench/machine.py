"""Keeps effects of the machine, which differ from run to run, out of the measurements.

- A machine may pace what TCP sends (BBR does, on loopback as well): timers then bound every stream, whoever sends it.
  Most machines don't. So benches run in a network namespace of their own without pacing, if they may (as root).
- A virtual machine may give free memory back to its host, and gets it back page by page at the first touch, at a
  quarter of the speed or less. So the memory that a run may fill is touched just before it.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import socket
import struct
import sys
from pathlib import Path

CLONE_NEWNET = 0x40000000
SIOCSIFFLAGS = 0x8914
IFF_UP = 1
CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control")
PACED = "bbr"
UNPACED = ("cubic", "reno")  # the usual one, and the one that every kernel has


def use_unpaced_network() -> None:
    """For this process and those that it starts from now on. Says on stderr what it did, or that it could not."""
    if not CONTROL.exists() or not CONTROL.read_text().startswith(PACED):
        return
    if os.geteuid() != 0 or ctypes.CDLL(None).unshare(CLONE_NEWNET) != 0:
        _say(f"this machine's TCP ({PACED}) paces all streams, which bounds rates; as root a bench gets round that")
        return
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))
    for name in UNPACED:
        try:
            CONTROL.write_text(name)
        except OSError:  # not allowed here
            continue
        _say(f"a network of its own, with {name}: this machine's {PACED} paces all streams")
        return
    _say(f"this machine's TCP ({PACED}) paces all streams, which bounds rates, and allows no other")


def _say(what: str) -> None:
    print(f"network: {what}", file=sys.stderr, flush=True)


def touch_memory(size: int) -> None:
    """Touch this much free memory, but at most half of it."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(fields["MemAvailable"].split()[0]) * 1024
    if size := min(size, free // 2):
        mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE).close()
