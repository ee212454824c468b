"""What pages tell people to type is accepted: commands parse, files exist, resources fit the CRDs, links lead on."""

import contextlib
import functools
import io
import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ballast_cli.__main__ import KUBE_VERBS, load
from ballast_local.schema import prune, validate

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)#\s]+)(?:#([\w-]+))?\)")
# An indented or fenced line that begins with a program of ours or kubectl; a comment behind it is for the reader.
TYPED = re.compile(r"^(?: {4}|> )?(?:\$ )?((?:\./ballast|kubectl) .*)$", re.MULTILINE)
PLACEHOLDER = re.compile(r"\$\(.*\)|\.\.\.|[A-Z]{3,}")
KUBECTL_VERBS = (*KUBE_VERBS, "patch", "edit", "scale", "explain", "logs", "annotate", "rollout", "exec", "create")


EACH_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def typed(page: Path) -> list[str]:
    found = TYPED.findall(page.read_text("utf-8"))
    return [line.split("  #")[0].split(" | ")[0].strip() for line in found]


@EACH_PAGE
def test_every_command_of_ours_is_accepted_by_its_parser(page: Path) -> None:
    for line in typed(page):
        if not line.startswith("./ballast ") or PLACEHOLDER.search(line):
            continue
        name, *arguments = shlex.split(line)[1:]
        complaint = io.StringIO()
        code: object = 0
        with contextlib.redirect_stderr(complaint), contextlib.redirect_stdout(io.StringIO()):
            try:
                load(name).parse(arguments)
            except SystemExit as ended:
                code = ended.code
        assert code == 0, f"{line}\n{complaint.getvalue()}"


@EACH_PAGE
def test_every_file_given_to_kubectl_is_there(page: Path) -> None:
    for line in typed(page):
        if not line.startswith("kubectl "):
            continue
        words = shlex.split(line)
        assert any(word in KUBECTL_VERBS for word in words), line
        for option, value in itertools.pairwise(words):
            if option in ("-f", "-k") and value.startswith(("manifests", "crds")):
                assert (ROOT / value).exists(), line
                assert option == "-f" or (ROOT / value / "kustomization.yaml").exists(), line


@functools.cache
def schemas() -> dict[str, Any]:
    found = {}
    for file in (ROOT / "crds").glob("*.yaml"):
        body = yaml.safe_load(file.read_text("utf-8"))
        if body["kind"] == "CustomResourceDefinition":
            found[body["spec"]["names"]["kind"]] = body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def blocks(page: Path) -> Iterator[str]:
    """Indented blocks that are YAML of ours."""
    text = page.read_text("utf-8")
    for block in re.findall(r"(?:^ {4}.*\n|^\n(?= {4}))+", text, re.MULTILINE):
        lines = [line[4:] for line in block.splitlines()]
        if any(line.startswith("apiVersion: ballast.dev/") for line in lines):
            yield "\n".join(lines)


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
    for target, anchor in LINK.findall(page.read_text("utf-8")):
        if "://" in target:
            continue
        path = (page.parent / target).resolve()
        assert path.exists(), f"{page.name}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", path.read_text("utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in slugs, f"{page.name}: {target}#{anchor}"
