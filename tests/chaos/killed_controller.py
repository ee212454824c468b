"""A real broker that kills itself (SIGKILL) at the nth step of a request that it handles as the active controller.

`BALLAST_TEST_KILL_AFTER=FILE python -m tests.chaos.killed_controller FILE.properties`. The file holds n and the name of
the request; the broker that begins to handle it removes the file. Each mutating file operation and each send is a step.
The step at which it dies is half done where that is possible.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

from tests.moves.killed_broker import COUNTDOWN, KillingDisk, die

from ballast_broker import __main__
from ballast_broker.controller.service import ControllerService
from ballast_broker.storage import disk

FILE = Path(os.environ["BALLAST_TEST_KILL_AFTER"])

handle = ControllerService.handle
send = socket.socket.send
sendfile = os.sendfile


def arm(request: Any) -> None:
    if not FILE.exists():
        return
    left, name = FILE.read_text().split()
    if type(request).__name__ == name and not request.validate_only:
        FILE.unlink()
        COUNTDOWN.begin(int(left))


async def armed_handle(self: ControllerService, api_key: int, version: int, request: Any, *more: Any, **of: Any) -> Any:
    if self.is_active:
        arm(request)
    return await handle(self, api_key, version, request, *more, **of)


def killing_send(self: socket.socket, data: Any, *flags: int) -> int:
    if COUNTDOWN.last():
        send(self, memoryview(data)[: len(data) // 2], *flags)
        die()
    return send(self, data, *flags)


def killing_sendfile(out_fd: int, in_fd: int, offset: int | None, count: int) -> int:
    if COUNTDOWN.last():
        die()
    return sendfile(out_fd, in_fd, offset, count)


if __name__ == "__main__":
    disk.RealDisk = KillingDisk  # type: ignore[misc]
    ControllerService.handle = armed_handle  # type: ignore[method-assign]
    socket.socket.send = killing_send  # type: ignore[method-assign, assignment]
    os.sendfile = killing_sendfile
    sys.exit(__main__.main())
