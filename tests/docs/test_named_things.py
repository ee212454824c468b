"""What the pages name exists: commands of the script, and paths."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMAND = re.compile(r"\./ballast ([a-z]+)")
FOLDERS = "broker-image|operator|spark|crds|manifests|tests|docs|requirements|bench"
PATH = re.compile(rf"(?<![\w/.-])((?:{FOLDERS})/[\w./*-]*|\.ci/run)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_is_known_to_the_dispatcher(page: Path) -> None:
    for name in sorted(set(COMMAND.findall(page.read_text("utf-8")))):
        done = subprocess.run([ROOT / "ballast", name, "--help"], capture_output=True, text=True, timeout=30)
        assert "there is no command" not in done.stderr, f"{page.name} names ./ballast {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_exists(page: Path) -> None:
    named = {path.rstrip(".") for path in PATH.findall(page.read_text("utf-8"))}
    missing = sorted(path for path in named if not list(ROOT.glob(path.rstrip("/"))))
    assert not missing, f"{page.name} names what is not there"
