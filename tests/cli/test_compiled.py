"""The compiled packages in the cache; that they are the same broker, all tests of `./ballast test --compiled` say."""

import sys
from pathlib import Path

import pytest

from ballast_cli import CommandError, compiled
from ballast_cli.image_contents import PYTHON, Flavour, content_key, missing_for_contents

COMPILER = """
import pathlib, sys
if sys.argv[1] == "--missing":
    print(pathlib.Path(__file__).with_name("missing").read_text(), end="")
    sys.exit()
target = pathlib.Path(sys.argv[1])
(target / "ballast_broker").mkdir()
(target / "ballast_broker" / "hot.so").write_text("machine code")
with pathlib.Path(__file__).with_name("runs").open("a") as runs:
    runs.write("once ")
sys.exit(pathlib.Path(__file__).with_name("fails").exists() and "a line too long")
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, and a compiler that writes down when it runs."""
    (tmp_path / "compile.py").write_text(COMPILER)
    (tmp_path / "missing").write_text("")
    monkeypatch.setenv("BALLAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(compiled, "SOURCES", tmp_path / "sources")
    monkeypatch.setattr(compiled, "COMPILER", tmp_path / "compile.py")
    (tmp_path / "sources" / "ballast_broker").mkdir(parents=True)
    (tmp_path / "sources" / "ballast_broker" / "hot.py").write_text("x = 1\n")
    return tmp_path


def test_the_same_sources_are_compiled_once(place: Path) -> None:
    said: list[str] = []
    folder = compiled.compiled_packages(said.append)
    assert (folder / "ballast_broker" / "hot.so").read_text() == "machine code"
    assert compiled.compiled_packages(said.append) == folder
    assert (place / "runs").read_text() == "once "
    assert len(said) == 1
    (place / "sources" / "ballast_broker" / "hot.py").write_text("x = 2\n")
    assert compiled.compiled_packages(said.append) != folder
    assert (place / "runs").read_text() == "once once "


def test_only_the_newest_are_kept(place: Path) -> None:
    source = place / "sources" / "ballast_broker" / "hot.py"
    folders = []
    for number in range(compiled.KEPT + 2):
        source.write_text(f"x = {number}\n")
        folders.append(compiled.compiled_packages(lambda _: None))
    assert {folder for folder in folders if folder.is_dir()} == set(folders[2:])


def test_a_failure_is_told_and_leaves_nothing(place: Path) -> None:
    (place / "fails").touch()
    with pytest.raises(CommandError, match="compiling failed:\na line too long"):
        compiled.compiled_packages(lambda _: None)
    assert list((place / "cache" / "compiled").iterdir()) == []


def test_a_machine_without_a_compiler_is_told_what_it_lacks(place: Path) -> None:
    (place / "missing").write_text("a C compiler (apt-get install gcc)\nheaders")
    with pytest.raises(CommandError, match=r"needs a C compiler \(apt-get install gcc\); headers\.$"):
        compiled.compiled_packages(lambda _: None)
    assert not (place / "runs").exists()


def test_the_compiler_knows_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert any("C compiler" in line for line in compiled.missing_for_compiler())


def test_only_an_image_with_brokers_needs_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert missing_for_contents(Flavour.SPARK) == []
    assert bool(missing_for_contents(Flavour.BROKER)) is (sys.version_info[:2] == PYTHON)


@pytest.mark.skipif(sys.version_info[:2] != PYTHON, reason="the image's Python is another one")
def test_an_image_compiled_otherwise_is_another_image(place: Path) -> None:
    before = content_key(Flavour.BROKER)
    (place / "sources" / "ballast_broker" / "hot.py").write_text("x = 2\n")
    assert content_key(Flavour.BROKER) != before
