"""What the pages name exists: commands of the script, and paths."""

import re
from pathlib import Path

import pytest

from ballast_cli.__main__ import MODULES

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMAND = re.compile(r"\./ballast ([a-z]+)")
FOLDERS = "broker-image|operator|spark|crds|manifests|tests|docs|requirements|bench"
PATH = re.compile(rf"(?<![\w/.-])((?:{FOLDERS})/[\w./*-]*|\.ci/run)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_is_known_to_the_dispatcher(page: Path) -> None:
    assert set(COMMAND.findall(page.read_text("utf-8"))) <= set(MODULES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_exists(page: Path) -> None:
    named = {path.rstrip(".") for path in PATH.findall(page.read_text("utf-8"))}
    missing = sorted(path for path in named if not list(ROOT.glob(path.rstrip("/"))))
    assert not missing, f"{page.name} names what is not there"
