"""Performs one attempt of a probe: HTTP, TCP or a command. Only in the event loop."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable

from ballast_local.errors import Obj

# (command) → exit code and output
Execute = Callable[[list[str], float], Awaitable[tuple[int, str]]]


def port_number(port: object, container: Obj) -> int:
    if isinstance(port, int):
        return port
    if isinstance(port, str) and port.isdecimal():
        return int(port)
    for declared in container.get("ports") or []:
        if declared.get("name") == port:
            return int(declared["containerPort"])
    raise ValueError(f"the container has no port named {port!r}")


async def attempt(probe: Obj, container: Obj, address: str, execute: Execute) -> str | None:
    """Probe once; returns None on success, else the reason for the failure."""
    seconds = float(probe.get("timeoutSeconds", 1))
    try:
        async with asyncio.timeout(seconds + 0.05):
            if "httpGet" in probe:
                return await _http(probe["httpGet"], container, address)
            if "tcpSocket" in probe:
                return await _tcp(probe["tcpSocket"], container, address)
            if "exec" in probe:
                code, output = await execute(probe["exec"]["command"], seconds)
                return None if code == 0 else f"command exited with {code}: {output[-500:]}"
    except TimeoutError:
        return f"no answer within {seconds:g} s"
    except (OSError, ValueError, asyncio.IncompleteReadError) as fault:
        return str(fault) or type(fault).__name__
    return "the probe has no action that the embedded Kubernetes API knows"


async def _tcp(action: Obj, container: Obj, address: str) -> str | None:
    port = port_number(action["port"], container)
    _, writer = await asyncio.open_connection(action.get("host") or address, port)
    writer.close()
    return None


async def _http(action: Obj, container: Obj, address: str) -> str | None:
    host, port = action.get("host") or address, port_number(action["port"], container)
    secure: ssl.SSLContext | None = None
    if action.get("scheme", "HTTP").upper() == "HTTPS":
        secure = ssl.create_default_context()
        secure.check_hostname, secure.verify_mode = False, ssl.CERT_NONE
    reader, writer = await asyncio.open_connection(host, port, ssl=secure)
    try:
        headers = {"Host": f"{host}:{port}", "User-Agent": "kube-probe/1.34", "Accept": "*/*", "Connection": "close"}
        headers |= {one["name"]: one["value"] for one in action.get("httpHeaders") or []}
        lines = [f"GET {action.get('path') or '/'} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        await writer.drain()
        status = (await reader.readline()).decode("latin-1").split()
    finally:
        writer.close()
    if len(status) < 2 or not status[1].isdecimal():
        return "the answer is not HTTP"
    code = int(status[1])
    return None if 200 <= code < 400 else f"HTTP probe failed with statuscode: {code}"
