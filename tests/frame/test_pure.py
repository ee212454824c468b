"""Which modules are PURE is said where they begin, and holds for each that says so; import-linter has only a list."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("broker-image", "operator", "spark")
# Of itself a module says it at the end of a clause; "PURE commands" are somebody else's.
SAYS_SO = re.compile(r"\bPURE(?=[.:;]|$| but )")
LEAST = 200  # as many say so today; a pattern that finds fewer finds nothing


def test_what_calls_itself_pure_asks_no_clock_and_does_nothing() -> None:
    forbidden = _forbidden()
    pure = dict(_pure_modules())
    assert len(pure) >= LEAST
    impure = {str(path): found for path, tree in pure.items() if (found := sorted(_imported(tree) & forbidden))}
    assert impure == {}


def _forbidden() -> set[str]:
    """What the contract of import-linter forbids."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    (found,) = (each for each in contracts if each["name"].startswith("PURE"))
    return set(found["forbidden_modules"])


def _pure_modules() -> Iterator[tuple[Path, ast.Module]]:
    for source in SOURCES:
        for path in sorted((ROOT / source).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            if SAYS_SO.search(ast.get_docstring(tree) or ""):
                yield path.relative_to(ROOT), tree


def _imported(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add((node.module or "").partition(".")[0])
    return found
