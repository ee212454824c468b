"""Tells what Argo CD would say of an object: runs the Lua of manifests/argocd in a real Lua."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CHECK = Path(__file__).resolve().parents[2] / "manifests" / "argocd" / "health.lua"


def find_lua() -> str | None:
    return shutil.which("lua5.4") or shutil.which("lua")


def health(obj: Mapping[str, Any]) -> tuple[str, str]:
    """(status, message) as Argo CD shows them."""
    program = find_lua()
    assert program is not None
    script = f"obj = {_lua(obj)}\nlocal function check()\n{CHECK.read_text()}\nend\nlocal found = check()\n"
    script += "print(found.status)\nprint(found.message)"
    done = subprocess.run([program, "-"], input=script, capture_output=True, text=True, check=True, timeout=10)
    status, _, message = done.stdout.strip().partition("\n")
    return status, message


def _lua(value: Any) -> str:
    """A Lua literal; keys whose value is null are left out, as a Lua table cannot hold nil."""
    if isinstance(value, Mapping):
        present = {key: item for key, item in value.items() if item is not None}
        return "{" + ", ".join(f"[{_text(key)}] = {_lua(item)}" for key, item in present.items()) + "}"
    if isinstance(value, list):
        return "{" + ", ".join(_lua(item) for item in value) + "}"
    return _text(value) if isinstance(value, str) else json.dumps(value)


def _text(value: str) -> str:
    return '"' + "".join(f"\\{byte:03d}" for byte in value.encode()) + '"'
