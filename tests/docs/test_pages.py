"""What pages tell people to type is accepted: commands parse, files exist, resources fit the CRDs, links lead on."""

import contextlib
import functools
import io
import itertools
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.docs.commands import CHANGED, NOT_TYPED, TYPED, commands, pages

from ballast_cli import bench, e2e
from ballast_cli.__main__ import MODULES, load
from ballast_local.schema import prune, validate

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)#\s]+)(?:#([\w-]+))?\)")
SHOWN = re.compile(r"^ {4}.*", re.MULTILINE)  # has brackets of its own
EACH_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def ours(page: Path) -> list[str]:
    found = [command.text for command in commands(str(page.relative_to(ROOT)))]
    return [text.removesuffix(" ...") for text in found if re.match(r"(?:\./)?ballast (?!spark-submit)", text)]


@EACH_PAGE
def test_every_command_of_ours_is_accepted_by_its_parser(page: Path) -> None:
    for line in ours(page):
        named = re.sub(r"\bURL\b", "http://host:9090", re.sub(r"\bHOST:PORT\b", "host:9092", line))
        name, *arguments = shlex.split(named)[1:]
        if not arguments:
            assert name in MODULES, line
            continue
        complaint = io.StringIO()
        code: object = 0
        with contextlib.redirect_stderr(complaint), contextlib.redirect_stdout(io.StringIO()):
            try:
                parsed(name, arguments)
            except SystemExit as ended:
                code = ended.code
        assert code == 0, f"{line}\n{complaint.getvalue()}"


def test_there_is_something_to_look_at() -> None:
    """Of each kind, on some page: else a pattern that finds nothing any more would find no fault either."""
    assert any(ours(page) for page in PAGES)
    assert any(command.text.startswith("kubectl ") for page in pages() for command in commands(page))
    assert any(blocks(page) for page in PAGES)
    linked = [target for page in PAGES for target, _ in links(page) if "://" not in target]
    assert len(linked) >= len(PAGES), "pages lead to each other"


def parsed(name: str, arguments: list[str]) -> None:
    args = load(name).parse(arguments)
    if name == "bench":
        bench.parse(args)
    elif name == "e2e":
        for word in args.scenario:
            assert any(word in name for name in e2e.scenarios()), f"no scenario is named {word}"


def test_what_a_parser_does_not_know_is_found_out() -> None:
    for arguments in (["moves", "--throttle"], ["size"]):
        with pytest.raises(SystemExit), contextlib.redirect_stderr(io.StringIO()):
            parsed("bench", arguments)


@pytest.mark.parametrize("name", bench.NAMES)
def test_every_bench_that_is_named_is_there_and_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed("bench", [name, "--help"])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    assert "usage: ballast bench [-h]" in told
    assert f"usage: ballast bench {name} [-h]" in told


def test_every_command_is_typed_by_a_test_or_said_not_to_be() -> None:
    found = [command for page in pages() for command in commands(page)]
    lost = [(command.page, command.text) for command in found if not command.typed_by and not command.left_out]
    assert lost == [], "add them to the tables of tests/docs/commands.py"


def test_the_tables_of_commands_have_no_row_too_many() -> None:
    found = [command for page in pages() for command in commands(page)]
    for page, begins, test in TYPED:
        assert any(command.page == page and re.match(begins, command.text) for command in found), (page, begins)
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text("utf-8"), test
    for pattern, why in NOT_TYPED:
        assert any(not command.typed_by and re.match(pattern, command.text) for command in found), (pattern, why)
    for pattern, _, why in CHANGED:
        assert any(command.typed_by and re.search(pattern, command.text) for command in found), (pattern, why)


@EACH_PAGE
def test_every_file_given_to_kubectl_is_there(page: Path) -> None:
    for command in commands(str(page.relative_to(ROOT))):
        if not command.text.startswith("kubectl "):
            continue
        for option, value in itertools.pairwise(shlex.split(command.text)):
            if option in ("-f", "-k") and value != ".":
                assert (ROOT / value).exists(), command.text
                assert option == "-f" or (ROOT / value / "kustomization.yaml").exists(), command.text


@functools.cache
def schemas() -> dict[str, Any]:
    found = {}
    for file in (ROOT / "crds").glob("*.yaml"):
        body = yaml.safe_load(file.read_text("utf-8"))
        if body["kind"] == "CustomResourceDefinition":
            found[body["spec"]["names"]["kind"]] = body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def links(page: Path) -> list[tuple[str, str]]:
    return LINK.findall(SHOWN.sub("", page.read_text("utf-8")))


def blocks(page: Path) -> list[str]:
    """Indented blocks that are YAML of ours."""
    text, found = page.read_text("utf-8"), []
    for block in re.findall(r"(?:^ {4}.*\n|^\n(?= {4}))+", text, re.MULTILINE):
        lines = [line[4:] for line in block.splitlines()]
        if any(line.startswith("apiVersion: ballast.dev/") for line in lines):
            found.append("\n".join(lines))
    return found


@EACH_PAGE
def test_every_resource_shown_fits_its_schema(page: Path) -> None:
    known = schemas()
    for block in blocks(page):
        for body in yaml.safe_load_all(block):
            schema = known[body["kind"]]
            assert validate(schema, body) == []
            assert prune(schema, body) == [], "fields that nobody reads"


@EACH_PAGE
def test_every_link_leads_somewhere(page: Path) -> None:
    for target, anchor in links(page):
        if "://" in target:
            continue
        path = (page.parent / target).resolve()
        assert path.exists(), f"{page.name}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", path.read_text("utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in slugs, f"{page.name}: {target}#{anchor}"
