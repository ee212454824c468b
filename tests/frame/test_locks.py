"""requirements/*.lock: names, versions and hashes; nothing about where packages come from."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCKS = {path.stem: path.read_text() for path in (ROOT / "requirements").glob("*.lock")}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def versions(lock: str) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", lock, re.MULTILINE))


def required_names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^A-Za-z0-9-]", requirement, maxsplit=1)[0].lower() for requirement in requirements}


def test_every_extra_has_its_lock() -> None:
    assert set(LOCKS) == {"broker", *PROJECT["optional-dependencies"]}


@pytest.mark.parametrize("name", sorted(LOCKS))
def test_only_pins_and_hashes(name: str) -> None:
    line = re.compile(r"([a-z0-9-]+==[^\s;]+( ; [^\\]+)? \\|    --hash=sha256:[0-9a-f]{64}( \\)?)")
    wrong = [text for text in LOCKS[name].splitlines() if not line.fullmatch(text)]
    assert wrong == []


@pytest.mark.parametrize("name", sorted(LOCKS))
def test_what_the_project_asks_for_is_locked(name: str) -> None:
    asked = required_names(PROJECT["dependencies"]) | required_names(PROJECT["optional-dependencies"].get(name, []))
    assert asked <= set(versions(LOCKS[name]))


def test_locks_agree_so_that_they_share_one_environment() -> None:
    chosen: dict[str, str] = {}
    for lock in LOCKS.values():
        for name, version in versions(lock).items():
            assert chosen.setdefault(name, version) == version, name
