"""TCP proxies for service addresses: forward connections to the ready endpoints in turn."""

import asyncio
import contextlib
from collections.abc import Sequence

BUFFER_BYTES = 1 << 16
Endpoint = tuple[str, int]


class Proxy:
    def __init__(self) -> None:
        self.endpoints: Sequence[Endpoint] = ()
        self._next = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False

    async def start(self, address: str, port: int) -> None:
        """Listen; raises OSError if the address cannot be bound."""
        self._server = await asyncio.start_server(self._accept, address, port)
        if self._stopped:
            self._server.close()

    async def stop(self) -> None:
        self._stopped = True
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        endpoints = list(self.endpoints)
        for _ in endpoints:
            self._next += 1
            address, port = endpoints[self._next % len(endpoints)]
            try:
                there, away = await asyncio.open_connection(address, port)
            except OSError:
                continue
            try:
                await asyncio.gather(_pump(reader, away), _pump(there, writer))
            finally:
                away.close()
            return


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while chunk := await reader.read(BUFFER_BYTES):
            writer.write(chunk)
            await writer.drain()
    finally:
        with contextlib.suppress(OSError, RuntimeError):
            writer.write_eof()
