"""Compiles a CEL syntax tree to Python closures over an environment of variables. PURE.

Guarantees: unknown names and wrong numbers of arguments are refused at compile time; every failure of an evaluation is
a CelError.
"""

import re
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

from ballast_local.cel.functions import FUNCTIONS
from ballast_local.cel.parser import (
    Binary,
    Call,
    CelSyntaxError,
    Conditional,
    Ident,
    Index,
    ListNode,
    Literal,
    MapNode,
    Node,
    Select,
    Unary,
    parse,
)
from ballast_local.cel.values import CelError, Optional, checked_int, equals, is_number, ordered, type_name

Env = dict[str, Any]
Thunk = Callable[[Env], Any]
# All that an evaluation may end in; whoever calls it sees a CelError.
_FAILURES = (
    CelError, TypeError, AttributeError, ValueError, OverflowError, RecursionError, KeyError, IndexError,
)  # fmt: skip
_TYPES = ("int", "uint", "double", "bool", "string", "bytes", "list", "map", "null_type")
_NAMESPACES = ("sets", "optional", "math")
_ESCAPED = {"underscores": "__", "dot": ".", "dash": "-", "slash": "/"}


def unescape(field: str) -> str:
    """Undo Kubernetes' escaping of property names that are not CEL identifiers."""

    def one(match: re.Match[str]) -> str:
        return _ESCAPED.get(match[1], match[1] if match[0] == field else match[0])

    return re.sub(r"__([a-z]+)__", one, field)


class Program:
    def __init__(self, text: str, node: Node, thunk: Thunk, used: frozenset[str]) -> None:
        self.text, self.node, self._thunk, self.names = text, node, thunk, used

    def evaluate(self, variables: Env) -> Any:
        try:
            return self._thunk(variables)
        except CelError:
            raise
        except _FAILURES as fault:
            raise CelError(f"no such overload: {fault}") from None


def compile_expression(text: str, variables: Iterable[str]) -> Program:
    compiler = _Compiler(set(variables))
    try:
        node = parse(text)
        thunk = compiler.compile(node)
    except RecursionError:
        raise CelSyntaxError("expression is nested too deeply") from None
    return Program(text, node, thunk, frozenset(compiler.used))


class _Compiler:
    def __init__(self, known: set[str]) -> None:
        self._known = known
        self.used: set[str] = set()

    def compile(self, node: Node) -> Thunk:
        if isinstance(node, Literal):
            value = node.value
            return lambda env: value
        if isinstance(node, Ident):
            return self._ident(node.name)
        if isinstance(node, Select):
            return self._select(self.compile(node.operand), unescape(node.field), node.optional)
        if isinstance(node, Index):
            return self._index(node)
        if isinstance(node, Call):
            return self._call(node)
        if isinstance(node, ListNode):
            items = [self.compile(item) for item in node.items]
            return lambda env: [item(env) for item in items]
        if isinstance(node, MapNode):
            pairs = [(self.compile(key), self.compile(value)) for key, value in node.items]
            return lambda env: {key(env): value(env) for key, value in pairs}
        if isinstance(node, Unary):
            return self._unary(node)
        if isinstance(node, Conditional):
            return self._conditional(node)
        return self._binary(node)

    def _ident(self, name: str) -> Thunk:
        if name in self._known:
            self.used.add(name)
            return lambda env: env[name]
        if name in _TYPES:
            return lambda env: name
        raise CelSyntaxError(f"undeclared reference to '{name}' (in container '')")

    def _select(self, operand: Thunk, field: str, optional: bool) -> Thunk:
        def select(env: Env) -> Any:
            value = operand(env)
            wrapped = isinstance(value, Optional)
            if wrapped:
                if not value.present:
                    return value
                value = value.value
            if not isinstance(value, dict):
                raise CelError(f"no such overload: {type_name(value)}.{field}")
            if optional or wrapped:
                return Optional(True, value[field]) if field in value else Optional(False)
            if field not in value:
                raise CelError(f"no such key: {field}")
            return value[field]

        return select

    def _index(self, node: Index) -> Thunk:
        operand, index, optional = self.compile(node.operand), self.compile(node.index), node.optional

        def at(env: Env) -> Any:
            value, key = operand(env), index(env)
            wrapped = isinstance(value, Optional)
            if wrapped:
                if not value.present:
                    return value
                value = value.value
            if isinstance(value, list):
                found = isinstance(key, int) and not isinstance(key, bool) and 0 <= key < len(value)
            elif isinstance(value, dict):
                found = key in value
            else:
                raise CelError(f"no such overload: {type_name(value)}[{type_name(key)}]")
            if optional or wrapped:
                return Optional(True, value[key]) if found else Optional(False)
            if not found:
                raise CelError(f"index out of bounds: {key}" if isinstance(value, list) else f"no such key: {key}")
            return value[key]

        return at

    def _unary(self, node: Unary) -> Thunk:
        operand = self.compile(node.operand)
        if node.operator == "!":
            return lambda env: not _truth(operand(env))

        def negate(env: Env) -> Any:
            value = operand(env)
            if not is_number(value):
                raise CelError(f"no such overload: -{type_name(value)}")
            return -value

        return negate

    def _conditional(self, node: Conditional) -> Thunk:
        condition, yes, no = self.compile(node.condition), self.compile(node.yes), self.compile(node.no)
        return lambda env: yes(env) if _truth(condition(env)) else no(env)

    def _binary(self, node: Binary) -> Thunk:
        left, right = self.compile(node.left), self.compile(node.right)
        if node.operator in ("&&", "||"):
            return _logical(left, right, node.operator == "||")
        operate = _OPERATORS[node.operator]
        return lambda env: operate(left(env), right(env))

    def _call(self, node: Call) -> Thunk:
        if node.target is None and node.name == "has":
            return self._has(node)
        if node.target is not None and node.name in _MACROS and len(node.arguments) >= 2:
            macro = self._macro(node)
            if macro is not None:
                return macro
        name, nodes = node.name, node.arguments
        if isinstance(node.target, Ident) and node.target.name in _NAMESPACES and node.target.name not in self._known:
            name = f"{node.target.name}.{name}"
        elif node.target is not None:
            nodes = (node.target, *nodes)
        if name not in FUNCTIONS:
            raise CelSyntaxError(f"undeclared reference to '{name}' (in container '')")
        function, fewest, most = FUNCTIONS[name]
        if not fewest <= len(nodes) <= most:
            raise CelSyntaxError(f"found no matching overload for '{name}' with {len(nodes)} arguments")
        arguments = [self.compile(one) for one in nodes]
        if len(arguments) == 1:
            only = arguments[0]
            return lambda env: function(only(env))
        return lambda env: function(*[argument(env) for argument in arguments])

    def _has(self, node: Call) -> Thunk:
        if len(node.arguments) != 1 or not isinstance(node.arguments[0], Select):
            raise CelSyntaxError("invalid argument to has() macro")
        selection = node.arguments[0]
        operand, field = self.compile(selection.operand), unescape(selection.field)

        def has(env: Env) -> bool:
            value = operand(env)
            if isinstance(value, Optional):
                value = value.value if value.present else {}
            if not isinstance(value, dict):
                raise CelError(f"no such overload: has({type_name(value)}.{field})")
            return field in value

        return has

    def _macro(self, node: Call) -> Thunk | None:
        assert node.target is not None
        *names, body_node = node.arguments
        transform: Node | None = None
        if node.name == "map" and len(names) == 2:
            names, transform = names[:1], body_node
            body_node = node.arguments[1]
        if not all(isinstance(name, Ident) for name in names):
            return None
        variables = [name.name for name in names if isinstance(name, Ident)]
        operand = self.compile(node.target)
        inner = _Compiler(self._known | set(variables))
        body = inner.compile(body_node)
        shape = inner.compile(transform) if transform is not None else None
        self.used |= inner.used & self._known
        return _MACROS[node.name](operand, variables, body, shape)


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise CelError(f"no such overload: {type_name(value)} where bool is needed")
    return value


def _logical(left: Thunk, right: Thunk, decisive: bool) -> Thunk:
    """&& and ||: a side that decides the result wins over an error on the other side."""

    def evaluate(env: Env) -> bool:
        try:
            if _truth(left(env)) is decisive:
                return decisive
        except _FAILURES:
            if _truth(right(env)) is decisive:
                return decisive
            raise
        return _truth(right(env))

    return evaluate


def _scopes(operand: Thunk, names: list[str]) -> Callable[[Env], Iterable[Env]]:
    def scopes(env: Env) -> Iterable[Env]:
        value = operand(env)
        if not isinstance(value, (list, dict)):
            raise CelError(f"expression of type '{type_name(value)}' cannot be the range of a comprehension")
        scope = dict(env)
        if len(names) == 1:
            for item in value:
                scope[names[0]] = item
                yield scope
            return
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            scope[names[0]], scope[names[1]] = key, item
            yield scope

    return scopes


def _all(operand: Thunk, names: list[str], body: Thunk, _: Thunk | None, decisive: bool = False) -> Thunk:
    scopes = _scopes(operand, names)

    def evaluate(env: Env) -> bool:
        failure: Exception | None = None
        for scope in scopes(env):
            try:
                if _truth(body(scope)) is decisive:
                    return decisive
            except _FAILURES as fault:
                failure = fault
        if failure is not None:
            raise failure
        return not decisive

    return evaluate


def _exists(operand: Thunk, names: list[str], body: Thunk, shape: Thunk | None) -> Thunk:
    return _all(operand, names, body, shape, True)


def _exists_one(operand: Thunk, names: list[str], body: Thunk, _: Thunk | None) -> Thunk:
    scopes = _scopes(operand, names)
    return lambda env: sum(_truth(body(scope)) for scope in scopes(env)) == 1


def _filter(operand: Thunk, names: list[str], body: Thunk, _: Thunk | None) -> Thunk:
    scopes = _scopes(operand, names)
    return lambda env: [scope[names[0]] for scope in scopes(env) if _truth(body(scope))]


def _map(operand: Thunk, names: list[str], body: Thunk, shape: Thunk | None) -> Thunk:
    scopes = _scopes(operand, names)
    if shape is None:
        return lambda env: [body(scope) for scope in scopes(env)]
    return lambda env: [shape(scope) for scope in scopes(env) if _truth(body(scope))]


_MACROS: dict[str, Callable[[Thunk, list[str], Thunk, Thunk | None], Thunk]] = {
    "all": _all, "exists": _exists, "exists_one": _exists_one, "existsOne": _exists_one, "filter": _filter, "map": _map,
}  # fmt: skip


def _in(left: Any, right: Any) -> bool:
    if isinstance(right, dict):
        return left in right
    if isinstance(right, list):
        return any(equals(left, item) for item in right)
    raise CelError(f"no such overload: {type_name(left)} in {type_name(right)}")


def _compare(test: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def compare(left: Any, right: Any) -> bool:
        ordered(left, right)
        return test(left, right)

    return compare


def _add(left: Any, right: Any) -> Any:
    if is_number(left) and is_number(right):
        return checked_int(left + right) if isinstance(left, int) and isinstance(right, int) else left + right
    if type(left) is type(right) and isinstance(left, (str, list, bytes, timedelta)):
        return left + right
    if isinstance(left, datetime) and isinstance(right, timedelta):
        return left + right
    raise CelError(f"no such overload: {type_name(left)} + {type_name(right)}")


def _subtract(left: Any, right: Any) -> Any:
    times = isinstance(left, (datetime, timedelta)) and isinstance(right, (datetime, timedelta))
    if not times and not (is_number(left) and is_number(right)):
        raise CelError(f"no such overload: {type_name(left)} - {type_name(right)}")
    result = left - right
    return checked_int(result) if isinstance(result, int) else result


def _multiply(left: Any, right: Any) -> Any:
    if not (is_number(left) and is_number(right)):
        raise CelError(f"no such overload: {type_name(left)} * {type_name(right)}")
    result = left * right
    return checked_int(result) if isinstance(result, int) else result


def _divide(left: Any, right: Any) -> Any:
    if not (is_number(left) and is_number(right)):
        raise CelError(f"no such overload: {type_name(left)} / {type_name(right)}")
    if isinstance(left, int) and isinstance(right, int):
        if right == 0:
            raise CelError("division by zero")
        quotient = abs(left) // abs(right)
        return quotient if (left < 0) == (right < 0) else -quotient
    if right == 0:
        return float("nan") if left == 0 else float("inf") * (1 if left > 0 else -1)
    return left / right


def _modulo(left: Any, right: Any) -> int:
    if not (isinstance(left, int) and isinstance(right, int)):
        raise CelError(f"no such overload: {type_name(left)} % {type_name(right)}")
    if right == 0:
        raise CelError("modulus by zero")
    return int(left - right * _divide(left, right))


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "==": equals,
    "!=": lambda left, right: not equals(left, right),
    "<": _compare(lambda left, right: left < right),
    "<=": _compare(lambda left, right: left <= right),
    ">": _compare(lambda left, right: left > right),
    ">=": _compare(lambda left, right: left >= right),
    "in": _in,
    "+": _add,
    "-": _subtract,
    "*": _multiply,
    "/": _divide,
    "%": _modulo,
}
