"""Parses CEL into a syntax tree. PURE."""

import math
import re
import sys
from dataclasses import dataclass
from typing import Any


class CelSyntaxError(Exception):
    """The expression is not valid CEL, or uses an unknown name."""


@dataclass(frozen=True, slots=True)
class Literal:
    value: Any


@dataclass(frozen=True, slots=True)
class Ident:
    name: str


@dataclass(frozen=True, slots=True)
class Select:
    operand: "Node"
    field: str
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Index:
    operand: "Node"
    index: "Node"
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    target: "Node | None"
    name: str
    arguments: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class ListNode:
    items: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class MapNode:
    items: tuple[tuple["Node", "Node"], ...]


@dataclass(frozen=True, slots=True)
class Unary:
    operator: str
    operand: "Node"


@dataclass(frozen=True, slots=True)
class Binary:
    operator: str
    left: "Node"
    right: "Node"


@dataclass(frozen=True, slots=True)
class Conditional:
    condition: "Node"
    yes: "Node"
    no: "Node"


Node = Literal | Ident | Select | Index | Call | ListNode | MapNode | Unary | Binary | Conditional

_TOKEN = re.compile(
    r"""\s+|//[^\n]*
    |(?P<text>[rRbB]{0,2}(?:\"\"\"(?:[^\\]|\\.)*?\"\"\"|'''(?:[^\\]|\\.)*?'''|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'))
    |(?P<float>\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\.\d+(?:[eE][+-]?\d+)?)
    |(?P<int>0x[0-9a-fA-F]+[uU]?|\d+[uU]?)
    |(?P<ident>[A-Za-z_]\w*)
    |(?P<op>&&|\|\||==|!=|<=|>=|\?\.|\[\?|[-+*/%<>!?:.,()\[\]{}])
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\([xX][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-3][0-7]{2}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v",
            "\\": "\\", "'": "'", '"': '"', "`": "`", "?": "?"}  # fmt: skip
_RESERVED = frozenset(
    [
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    ]
)
_LEVELS: list[tuple[str, ...]] = [
    ("||",),
    ("&&",),
    ("==", "!=", "<", "<=", ">", ">=", "in"),
    ("+", "-"),
    ("*", "/", "%"),
]
MAX_DEPTH = 60


def _unquote(token: str) -> Any:
    prefix = re.match(r"[rRbB]*", token)
    assert prefix is not None
    kind, body = prefix[0].lower(), token[prefix.end() :]
    width = 3 if body[:3] in ('"""', "'''") else 1
    text = body[width:-width]
    if "b" not in kind:
        return text if "r" in kind else _ESCAPE.sub(_escape, text)
    octets = text.encode().decode("latin-1")  # each character is a byte, as those that \xff and \377 name
    return (octets if "r" in kind else _ESCAPE.sub(_escape_octet, octets)).encode("latin-1")


def _escape_octet(match: re.Match[str]) -> str:
    if match[1][0] in "uU":
        raise CelSyntaxError(f"Syntax error: no byte: \\{match[1]}")
    return _escape(match)


def _escape(match: re.Match[str]) -> str:
    code = match[1]
    if code[0] in "xXuU" and len(code) > 1:
        number = int(code[1:], 16)
        if number > sys.maxunicode:
            raise CelSyntaxError(f"Syntax error: no character: \\{code}")
        return "\ufffd" if 0xD800 <= number < 0xE000 else chr(number)
    if code.isdigit() and len(code) == 3:
        return chr(int(code, 8))
    if code not in _ESCAPES:
        raise CelSyntaxError(f"Syntax error: unknown escape: \\{code}")
    return _ESCAPES[code]


def _whole(text: str, negative: bool) -> int:
    """An int or uint; -2**63 is two tokens, whose second alone is too large."""
    digits, most = (text[:-1], 2**64 - 1) if text[-1] in "uU" else (text, 2**63 - (not negative))
    try:
        value = int(digits, 16 if digits.startswith("0x") else 10)
    except ValueError:  # has more digits than Python converts
        value = most + 1
    if value > most:
        raise CelSyntaxError("Syntax error: invalid int literal")
    return value


def _double(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise CelSyntaxError("Syntax error: invalid double literal")
    return value


def _tokens(text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise CelSyntaxError(f"Syntax error: unexpected {text[position]!r} at {position}")
        if match.lastgroup:
            found.append((match.lastgroup, match[0]))
        position = match.end()
    found.append(("end", ""))
    return found


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._at = 0
        self._depth = 0

    def _peek(self) -> str:
        kind, text = self._tokens[self._at]
        return text if kind in ("op", "ident", "end") else ""

    def _take(self, text: str) -> bool:
        if self._tokens[self._at] != ("end", "") and self._peek() == text:
            self._at += 1
            return True
        return False

    def _need(self, text: str) -> None:
        if not self._take(text):
            raise CelSyntaxError(f"Syntax error: expected {text!r}, found {self._tokens[self._at][1]!r}")

    def whole(self) -> Node:
        node = self.expression()
        if self._tokens[self._at][0] != "end":
            raise CelSyntaxError(f"Syntax error: unexpected {self._tokens[self._at][1]!r}")
        return node

    def expression(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise CelSyntaxError("expression is nested too deeply")
        node = self._binary(0)
        if self._take("?"):
            yes = self._binary(0)
            self._need(":")
            node = Conditional(node, yes, self.expression())
        self._depth -= 1
        return node

    def _binary(self, level: int) -> Node:
        if level == len(_LEVELS):
            return self._unary()
        if _LEVELS[level] in (("||",), ("&&",)):
            return self._chain(level)
        node = self._binary(level + 1)
        while self._peek() in _LEVELS[level]:
            operator = self._tokens[self._at][1]
            self._at += 1
            node = Binary(operator, node, self._binary(level + 1))
        return node

    def _chain(self, level: int) -> Node:
        """A chain of && or ||, which may be long, as a tree that is no deeper than it has to be."""
        (operator,), nodes = _LEVELS[level], [self._binary(level + 1)]
        while self._take(operator):
            nodes.append(self._binary(level + 1))
        while len(nodes) > 1:
            pairs = [Binary(operator, *nodes[at : at + 2]) for at in range(0, len(nodes) - 1, 2)]
            nodes = [*pairs, *nodes[2 * len(pairs) :]]
        return nodes[0]

    def _unary(self) -> Node:
        for operator in ("!", "-"):
            if self._take(operator):
                operand = self._unary()
                if operator == "!" or not isinstance(operand, Literal):
                    return Unary(operator, operand)
                if type(operand.value) not in (int, float):
                    raise CelSyntaxError("found no matching overload for '-_'")
                return Literal(-operand.value)
        return self._member()

    def _member(self) -> Node:
        node = self._primary()
        while True:
            if self._take("."):
                node = self._selection(node)
            elif self._take("?."):
                node = Select(node, self._name(), True)
            elif self._take("["):
                optional = self._take("?")
                node = Index(node, self.expression(), optional)
                self._need("]")
            elif self._take("[?"):
                node = Index(node, self.expression(), True)
                self._need("]")
            else:
                return node

    def _selection(self, node: Node) -> Node:
        if self._peek() == "?":
            self._at += 1
            return Select(node, self._name(), True)
        name = self._name()
        if self._take("("):
            return Call(node, name, self._arguments(")"))
        return Select(node, name)

    def _name(self) -> str:
        kind, text = self._tokens[self._at]
        if kind != "ident":
            raise CelSyntaxError(f"Syntax error: expected a name, found {text!r}")
        self._at += 1
        return text

    def _arguments(self, close: str) -> tuple[Node, ...]:
        found: list[Node] = []
        while not self._take(close):
            found.append(self.expression())
            if not self._take(","):
                self._need(close)
                break
        return tuple(found)

    def _primary(self) -> Node:
        kind, text = self._tokens[self._at]
        self._at += 1
        if kind == "int":
            return Literal(_whole(text, self._tokens[self._at - 2] == ("op", "-")))
        if kind == "float":
            return Literal(_double(text))
        if kind == "text":
            return Literal(_unquote(text))
        if kind == "ident":
            return self._identifier(text)
        if text == "(":
            node = self.expression()
            self._need(")")
            return node
        if text == "[":
            return ListNode(self._arguments("]"))
        if text == "{":
            return self._map()
        raise CelSyntaxError(f"Syntax error: unexpected {text or 'end of expression'!r}")

    def _identifier(self, text: str) -> Node:
        if text in ("true", "false"):
            return Literal(text == "true")
        if text == "null":
            return Literal(None)
        if text in _RESERVED:
            raise CelSyntaxError(f"Syntax error: reserved identifier: {text}")
        if self._take("("):
            return Call(None, text, self._arguments(")"))
        return Ident(text)

    def _map(self) -> Node:
        items: list[tuple[Node, Node]] = []
        while not self._take("}"):
            key = self.expression()
            self._need(":")
            items.append((key, self.expression()))
            if not self._take(","):
                self._need("}")
                break
        return MapNode(tuple(items))


def parse(text: str) -> Node:
    return _Parser(text).whole()
