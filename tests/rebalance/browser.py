"""Drives a headless Chromium over its DevTools protocol, to see pages as a phone or a screen reader gets them."""

from __future__ import annotations

import asyncio
import base64
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

DEADLINE_S = 60.0


class Page:
    """One tab."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._last = 0

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._last += 1
        await self._socket.send_json({"id": self._last, "method": method, "params": parameters})
        async with asyncio.timeout(DEADLINE_S):
            while True:
                answer = await self._socket.receive_json()
                if answer.get("id") == self._last:
                    assert "error" not in answer, answer["error"]
                    return dict(answer["result"])

    async def open(self, uri: str, width: int, height: int, mobile: bool, dark: bool = False) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        await self.call("Emulation.setEmulatedMedia", features=scheme)
        await self.call("Page.enable")
        await self.call("Page.navigate", url=uri)
        await _until(lambda: self._shows(uri))

    async def _shows(self, uri: str) -> bool:
        return bool(await self.run("document.readyState + location.href") == f"complete{uri}")

    async def run(self, script: str) -> Any:
        found = await self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def accessible(self) -> list[tuple[str, str]]:
        """(role, name) of everything that a screen reader gets, in order."""
        tree = await self.call("Accessibility.getFullAXTree")
        return [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in tree["nodes"]
            if not node.get("ignored")
        ]

    async def screenshot(self) -> bytes:
        """The whole page, not only the visible part."""
        shot = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(shot["data"])


@asynccontextmanager
async def chromium(profile: Path) -> AsyncIterator[Page]:
    binary = shutil.which("chromium") or shutil.which("chromium-browser")
    assert binary is not None, "these tests need Chromium on the PATH"
    process = await asyncio.create_subprocess_exec(
        binary, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}",
        "--remote-debugging-port=0", "about:blank", stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        port = await _port(profile)
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                (tab, *_) = [one for one in await answer.json() if one["type"] == "page"]
            async with session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                yield Page(socket)
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), DEADLINE_S)


async def _until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            if await holds():
                return
            await asyncio.sleep(0.05)


async def _port(profile: Path) -> int:
    """The DevTools port, which Chromium writes into a file when it listens."""
    file = profile / "DevToolsActivePort"

    def lines() -> list[str]:
        return file.read_text(encoding="utf-8").splitlines() if file.exists() else []

    async def written() -> bool:
        return len(lines()) > 1

    await _until(written)
    return int(lines()[0])
