"""What modules that the image compiles with mypyc must not do, although the interpreter allows it."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

IMAGE = Path(__file__).resolve().parents[2] / "broker-image"


def compiled_modules() -> list[str]:
    spec = importlib.util.spec_from_file_location("ballast_compile", IMAGE / "compile.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return list(module.MODULES)


@pytest.mark.parametrize("name", compiled_modules())
def test_nothing_waits_where_an_exception_is_handled(name: str) -> None:
    """In compiled code, the exception would become the context of whatever is raised elsewhere meanwhile, and so on:
    where several wait like that, as while a disk stalls, they form a chain that never ends."""
    tree = ast.parse((IMAGE / name).read_text(encoding="utf-8"))
    waits = (ast.Await, ast.Yield, ast.YieldFrom, ast.AsyncFor, ast.AsyncWith)
    found = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.AsyncWith)]  # its end is such a block
    for node in ast.walk(tree):
        inside = (
            node.body if isinstance(node, ast.ExceptHandler) else node.finalbody if isinstance(node, ast.Try) else []
        )
        found += [each.lineno for part in inside for each in ast.walk(part) if isinstance(each, waits)]
    assert not found, f"{name} waits where an exception is handled, line {found}"


@pytest.mark.parametrize("name", compiled_modules())
def test_what_was_set_to_none_is_not_read_again(name: str) -> None:
    """mypyc assumes that it stays None until the same function sets it, whatever is called in between; anything else is
    a TypeError."""
    tree = ast.parse((IMAGE / name).read_text(encoding="utf-8"))
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            none_since = {ast.unparse(target): line for target, line in set_to_none(function)}
            for node in ast.walk(function):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    since = none_since.get(ast.unparse(node), node.lineno)
                    assert node.lineno <= since, f"{name} reads {ast.unparse(node)} again, line {node.lineno}"


def set_to_none(function: ast.AST) -> Iterator[tuple[ast.Attribute, int]]:
    """The attributes that a function sets to None, each with the first line that does."""
    for node in sorted((node for node in ast.walk(function) if isinstance(node, ast.Assign)), key=lambda n: -n.lineno):
        for target in node.targets:
            pairs: Iterable[tuple[ast.expr, ast.expr]] = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = zip(target.elts, node.value.elts, strict=False)
            for place, value in pairs:
                if isinstance(place, ast.Attribute) and isinstance(value, ast.Constant) and value.value is None:
                    yield place, node.lineno
