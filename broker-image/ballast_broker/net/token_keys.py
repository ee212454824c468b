"""Keeps the published signing keys of tokens: fetched periodically, and at once when a token names an unknown key.

The last known keys stay valid while no newer ones can be fetched. However many tokens name unknown keys, the endpoint
is not asked more often than every `LEAST_BETWEEN_S`. Loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ballast_broker.net.remote import Remote, RemoteError
from ballast_broker.security.oauth_settings import KeysSettings
from ballast_broker.security.tokens import Key, KeySetError

log = logging.getLogger(__name__)

LEAST_BETWEEN_S = 5.0
LOOK_EVERY_S = 3.0  # how often a file is read
Parse = Callable[[bytes], tuple[Key, ...]]


class TokenKeys:
    """The keys for one listener."""

    def __init__(self, settings: KeysSettings, parse: Parse) -> None:
        self.keys: tuple[Key, ...] = ()
        self._settings = settings
        self._parse = parse
        self._remote = Remote(settings.endpoint)
        self._loop = asyncio.get_running_loop()
        is_file = settings.endpoint.is_file
        self._refresh_s = min(settings.refresh_ms / 1000, LOOK_EVERY_S) if is_file else settings.refresh_ms / 1000
        self._least_between_s = 0.0 if is_file else LEAST_BETWEEN_S
        self._told = ""
        self._began_at_s = 0.0
        self._fetching = False
        self._wanted = asyncio.Event()
        self._waiting: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None

    def read_file(self) -> None:
        """Call at startup; RemoteError or KeySetError if the file has no keys."""
        self.keys = self._parse(self._remote.read_file())

    def start(self) -> None:
        if self._task is None:
            self._task = self._loop.create_task(self._run(), name=f"keys of {self._settings.endpoint.url}")

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def anew(self) -> asyncio.Future[None] | None:
        """Fetch the keys again; returns a future that is done afterwards, or None if the last fetch is too recent."""
        if not self._fetching:
            if self._loop.time() < self._began_at_s + self._least_between_s:
                return None
            self._wanted.set()
        ready = self._loop.create_future()
        self._waiting.append(ready)
        return ready

    async def _run(self) -> None:
        failures = 0
        while True:
            self._wanted.clear()
            self._fetching, self._began_at_s = True, self._loop.time()
            failures = 0 if await self._fetch() else failures + 1
            self._fetching = False
            waiting, self._waiting = self._waiting, []
            for each in waiting:
                if not each.done():
                    each.set_result(None)
            try:
                async with asyncio.timeout(self._settings.backoff.pause_s(failures) or self._refresh_s):
                    await self._wanted.wait()
            except TimeoutError:
                pass

    async def _fetch(self) -> bool:
        try:
            self.keys = self._parse(await self._remote.fetch())
        except (RemoteError, KeySetError) as error:
            where = "" if isinstance(error, RemoteError) else f"{self._settings.endpoint.url}: "
            self._tell(f"{where}{error}")
            return False
        except Exception:
            log.exception("the keys of tokens could not be fetched from %s", self._settings.endpoint.url)
            return False
        if self._told:
            log.warning("the keys of tokens were fetched again from %s", self._settings.endpoint.url)
            self._told = ""
        return True

    def _tell(self, what: str) -> None:
        """Log it once, not at each attempt."""
        if what != self._told:
            self._told = what
            kept = f"the {len(self.keys)} known before still count" if self.keys else "no token is accepted until then"
            log.warning("the keys of tokens could not be fetched, %s: %s", kept, what)
