"""The types stage finds a stand-in that does not pass for what it stands for (tests/stand_ins.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MONKEYPATCH = """\
class MonkeyPatch:
    def setattr(self, target: object, name: object, value: object = None) -> None: ...
"""
PRODUCT = """\
class Disk:
    def read(self, path: str, size: int = 1) -> bytes:
        return b""

class Cached(Disk): ...

def measure(disk: Disk) -> int:
    return 1
"""
TEST = """\
from _pytest.monkeypatch import MonkeyPatch
import product

def test(patch: MonkeyPatch, disk: product.Disk) -> None:
    def stand_in{signature}
    patch.setattr({place}, stand_in)
"""


def refused(folder: Path, place: str, signature: str) -> bool:
    """Whether mypy with our plugin finds fault with it, and with nothing else."""
    for path, text in (
        ("_pytest/__init__.py", ""),
        ("_pytest/monkeypatch.py", MONKEYPATCH),
        ("product.py", PRODUCT),
        ("test_it.py", TEST.format(place=place, signature=signature)),
        ("mypy.ini", f"[mypy]\nstrict = true\nplugins = {ROOT / 'tests' / 'stand_ins.py'}\n"),
    ):
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-site-packages", "test_it.py"],
        cwd=folder, env={**os.environ, "MYPYPATH": str(folder)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    faults = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert all(line.endswith("[stand-in]") for line in faults), done.stdout + done.stderr
    assert done.returncode == len(faults[:1]), done.stdout + done.stderr
    return bool(faults)


@pytest.mark.parametrize(
    ("place", "signature"),
    [
        ('disk, "read"', "(path: str) -> bytes: return b''"),
        ('disk, "read"', "(path: str, size: int) -> bytes: return b''"),
        ('disk, "read"', "(path: str, size: int = 1) -> None: ..."),
        ('product.Disk, "read"', "(disk: product.Disk, path: str) -> bytes: return b''"),
        ('product, "measure"', "(disk: product.Disk, deep: bool) -> int: return 1"),
        ('"product.measure"', "(disk: product.Disk) -> int: return 1"),  # the text cannot be compared with anything
    ],
)
def test_what_does_not_pass_is_found(tmp_path: Path, place: str, signature: str) -> None:
    assert refused(tmp_path, place, signature)


@pytest.mark.parametrize(
    ("place", "signature"),
    [
        ('disk, "read"', "(name: str, count: int = 9, more: int = 0) -> bytes: return b''"),
        ('disk, "read"', "(*_: object) -> bytes: raise OSError"),
        ('product.Cached, "read"', "(disk: product.Cached, path: str, size: int = 1) -> bytes: return b''"),
        ('product, "measure"', "(disk: product.Disk) -> bool: return True"),
    ],
)
def test_what_passes_is_let_pass(tmp_path: Path, place: str, signature: str) -> None:
    assert not refused(tmp_path, place, signature)
