"""Matches names (of topics, transactional ids) against RE2 patterns in time linear in their length. PURE.

Python's `re` may backtrack forever, and these patterns come from clients. So a pattern is compiled to an NFA, through
which a name is taken once. The alphabet has only the letters that names may or do contain, so that a set of letters
fits into an int. RE2 features that no pattern of names needs are rejected explicitly: flags other than i and s, Unicode
classes, word boundaries, repetition of more than a thousand times.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from string import ascii_letters, ascii_lowercase, ascii_uppercase, digits, hexdigits, punctuation

MOST_REPEATS = 1000
MOST_STATES = 2_000
MOST_STEPS = 10 * MOST_STATES  # limits compilation: empty parts may be repeated without creating states
MOST_DEPTH = 100
MOST_REMEMBERED = 2_000
MOST_REMEMBERED_STATES = 100_000  # total over all cached steps: one step may lead to every state
MOST_LENGTH = 10_000
MOST_WORK = 5_000_000  # length of the pattern times size of the alphabet


class BadPattern(ValueError):
    """The message says what is wrong, as the end of a sentence."""


WORD_LETTERS = ascii_letters + digits + "_"
CLASSES = {"d": digits, "w": WORD_LETTERS, "s": "\t\n\f\r "}
NAMED = {
    "alnum": ascii_letters + digits, "alpha": ascii_letters, "ascii": "".join(map(chr, range(128))), "blank": "\t ",
    "cntrl": "".join(map(chr, [*range(32), 127])), "digit": digits, "graph": ascii_letters + digits + punctuation,
    "lower": ascii_lowercase, "print": ascii_letters + digits + punctuation + " ", "punct": punctuation,
    "space": "\t\n\v\f\r ", "upper": ascii_uppercase, "word": WORD_LETTERS, "xdigit": hexdigits,
}  # fmt: skip
OCTAL, HEXADECIMAL = tuple("01234567"), frozenset(hexdigits)
MOST_OCTAL = 3
CONTROLS = {"a": 7, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}


class Alphabet:
    """The letters names may consist of; a set of them is a bit mask."""

    def __init__(self, letters: Iterable[str]) -> None:
        own = set(letters)
        self._sorted = sorted(own.union(*(_cases(letter) for letter in own)))
        self.bits = {letter: 1 << place for place, letter in enumerate(self._sorted)}
        self.any = (1 << len(self.bits)) - 1
        self._alike: dict[str, int] = {}
        for letter, bit in self.bits.items():
            alike = _without_case(letter)
            self._alike[alike] = self._alike.get(alike, 0) | bit

    def set_of(self, letters: str) -> int:
        return sum(self.bits.get(letter, 0) for letter in letters)

    def between(self, first: str, last: str) -> int:
        begin, end = bisect_left(self._sorted, first), bisect_right(self._sorted, last)
        return (1 << end) - (1 << begin) if begin < end else 0

    def in_any_case(self, letter: str) -> int:
        return self._alike.get(_without_case(letter), 0)

    def and_in_other_cases(self, allowed: int) -> int:
        for alike in self._alike.values():
            if alike & allowed:
                allowed |= alike
        return allowed

    def a_class(self, name: str) -> int | None:
        """The class of the letter after a backslash; a capital letter negates it. None: not a class."""
        found = CLASSES.get(name.lower())
        if found is None:
            return None
        letters = self.set_of(found)
        return letters if name.islower() else self.any & ~letters


def _cases(letter: str) -> set[str]:
    return {each for each in (letter.upper(), _without_case(letter)) if len(each) == 1}


def _without_case(letter: str) -> str:
    lower = letter.upper().lower()
    return lower if len(lower) == 1 else letter


OF_TOPICS = Alphabet(ascii_letters + digits + "._-")


# -- what a pattern is made of ----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Letter:
    allowed: int


@dataclass(frozen=True, slots=True)
class _Sequence:
    parts: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Choice:
    parts: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Repeat:
    part: _Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class _Edge:
    """An anchor: the beginning or the end of the name."""

    begin: bool


_Node = _Letter | _Sequence | _Choice | _Repeat | _Edge
FLAGS = _Sequence(())  # a no-op: a repetition operator after it applies to what precedes


class _Reader:
    def __init__(self, text: str, alphabet: Alphabet) -> None:
        self._text = text
        self._alphabet = alphabet
        self._at = 0
        self._any_case = False
        self._dot_is_all = False  # flag s: dot matches newline, too
        self._depth = 0
        self._names: set[str] = set()

    def read(self) -> _Node:
        found = self._choice()
        if self._at < len(self._text):
            raise BadPattern("unexpected )")
        return found

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        self._at += 1
        return self._text[self._at - 1 : self._at]

    def _takes(self, text: str) -> bool:
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _choice(self) -> _Node:
        parts = [self._sequence()]
        while self._takes("|"):
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else _Choice(tuple(parts))

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        while self._peek() not in ("", "|", ")"):
            if self._takes("\\Q"):
                parts += self._quoted()
            elif (atom := self._atom()) is not FLAGS:
                parts.append(atom)
            if parts:
                parts.append(self._repeated(parts.pop()))
        return _Sequence(tuple(parts))

    def _repeated(self, part: _Node) -> _Node:
        times = self._times()
        if times is None:
            return part
        self._takes("?")  # lazy or greedy makes no difference to a full match
        self._check_not_repeated()
        return _Repeat(part, *times)

    def _check_not_repeated(self) -> None:
        begin = self._at
        if self._times() is not None:
            raise BadPattern(f"invalid nested repetition operator: {self._text[begin - 1 : self._at]}")

    def _times(self) -> tuple[int, int | None] | None:
        for sign, times in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._takes(sign):
                return times
        end = self._text.find("}", self._at)
        if self._peek() != "{" or end < 0:
            return None
        low, comma, high = self._text[self._at + 1 : end].partition(",")
        if not _is_number(low) or (high and not _is_number(high)):
            return None  # a literal brace
        least, most = int(low[:9]), int((high if comma else low)[:9]) if high or not comma else None
        if max(least, most or 0) > MOST_REPEATS or (most is not None and most < least):
            raise BadPattern(f"invalid repetition operator: {self._text[self._at : end + 1]}")
        self._at = end + 1
        return least, most

    def _atom(self) -> _Node:
        letter = self._take()
        if letter == "(":
            return self._group()
        if letter == "[":
            return _Letter(self._set())
        if letter == ".":
            return _Letter(self._alphabet.any & ~(0 if self._dot_is_all else self._alphabet.set_of("\n")))
        if letter in "^$":
            return _Edge(letter == "^")
        if letter in "*+?{":
            self._check_brace()
        if letter == "\\":
            return self._escaped()
        return self._literal(letter)

    def _check_brace(self) -> None:
        """An operator has nothing to repeat here; but a brace may be literal, and then, as in RE2/J, only once."""
        self._at -= 1
        begin = self._at
        if self._times() is not None:
            raise BadPattern(f"missing argument to repetition operator: {self._text[begin : self._at]}")
        self._at += 1
        self._check_not_repeated()

    def _literal(self, letter: str) -> _Letter:
        return _Letter(self._alphabet.in_any_case(letter) if self._any_case else self._alphabet.set_of(letter))

    def _group(self) -> _Node:
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise BadPattern("expression nests too deeply")
        outer = self._any_case, self._dot_is_all
        if self._takes("?"):
            begin = self._at
            if self._takes("P<") or self._takes("<"):
                self._name(self._until(">", "invalid named capture"))
            elif self._flags(begin):
                self._depth -= 1
                return FLAGS  # flags apply up to the end of the enclosing group
        found = self._choice()
        if not self._takes(")"):
            raise BadPattern("missing closing )")
        self._any_case, self._dot_is_all = outer
        self._depth -= 1
        return found

    def _name(self, name: str) -> None:
        if not name.isascii() or not name.replace("_", "a").isalnum():
            raise BadPattern(f"invalid named capture: {name}")
        if name in self._names:
            raise BadPattern(f"duplicate capture group name: {name}")
        self._names.add(name)

    def _flags(self, begin: int) -> bool:
        """True for flags that apply to the rest of the enclosing group, False for those of a group that begins here."""
        wanted, is_said = True, True
        while True:
            flag = self._take()
            if flag == "-" and wanted:
                wanted, is_said = False, False
            elif flag == "i":
                self._any_case, is_said = wanted, True
            elif flag == "s":
                self._dot_is_all, is_said = wanted, True
            elif flag in (")", ":") and flag and is_said:
                return flag == ")"
            else:
                raise BadPattern(f"invalid or unsupported Perl syntax: (?{self._text[begin : self._at]}")

    def _until(self, end: str, complaint: str) -> str:
        found = self._text.find(end, self._at)
        if found < 0:
            raise BadPattern(complaint)
        begin, self._at = self._at, found + len(end)
        return self._text[begin:found]

    def _quoted(self) -> list[_Node]:
        end = self._text.find("\\E", self._at)
        quoted = self._text[self._at : end if end >= 0 else len(self._text)]
        self._at += len(quoted) + (2 if end >= 0 else 0)
        return [self._literal(each) for each in quoted]

    def _escaped(self) -> _Node:
        letter = self._peek()
        if letter in ("A", "z"):
            self._at += 1
            return _Edge(letter == "A")
        if (known := self._alphabet.a_class(letter)) is not None:
            self._at += 1
            return _Letter(self._alphabet.and_in_other_cases(known) if self._any_case else known)
        return self._literal(self._escape())

    def _escape(self) -> str:
        """The letter an escape stands for."""
        letter = self._take()
        if not letter:
            raise BadPattern("trailing backslash at end of expression")
        if letter in CONTROLS:
            return chr(CONTROLS[letter])
        if letter == "x":
            return self._hexadecimal()
        if letter in "01234567" and (letter == "0" or self._peek() in OCTAL):  # otherwise it is a backreference
            while len(letter) < MOST_OCTAL and self._peek() in OCTAL:
                letter += self._take()
            return chr(int(letter, 8))
        if not (letter.isascii() and letter.isalnum()):
            return letter
        raise BadPattern(f"invalid escape sequence: \\{letter}")

    def _hexadecimal(self) -> str:
        in_braces = self._takes("{")
        digits = self._until("}", "invalid escape sequence: \\x") if in_braces else self._take() + self._take()
        if digits and all(each in HEXADECIMAL for each in digits) and (in_braces or len(digits) == 2):
            number = int(digits, 16)
            if number <= sys.maxunicode:
                return chr(number)
        raise BadPattern(f"invalid escape sequence: \\x{digits}")

    def _set(self) -> int:
        negated = self._takes("^")
        allowed, first = 0, True
        while first or self._peek() != "]":
            first = False
            if not self._peek():
                raise BadPattern("missing closing ]")
            allowed |= self._of_set()
        self._at += 1
        if self._any_case:
            allowed = self._alphabet.and_in_other_cases(allowed)
        return self._alphabet.any & ~allowed if negated else allowed

    def _of_set(self) -> int:
        end = self._text.find(":]", self._at + 1) if self._text.startswith("[:", self._at) else -1
        if end >= 0:  # otherwise a literal bracket
            name = self._text[self._at + 2 : end]
            self._at = end + 2
            known = NAMED.get(name.removeprefix("^"))
            if known is None:
                raise BadPattern(f"invalid character class range: [:{name}:]")
            letters = self._alphabet.set_of(known)
            return self._alphabet.any & ~letters if name.startswith("^") else letters
        letter = self._take()
        if letter == "\\":
            if (of_class := self._alphabet.a_class(self._peek())) is not None:
                self._at += 1
                return of_class
            letter = self._escape()
        if self._peek() != "-" or self._text[self._at + 1 : self._at + 2] in ("", "]"):
            return self._alphabet.set_of(letter)
        self._at += 1
        last = self._take()
        if last == "\\":
            last = self._escape()
        if last < letter:
            raise BadPattern(f"invalid character class range: {letter}-{last}")
        return self._alphabet.between(letter, last)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and (text == "0" or text[0] != "0")


# -- what it matches --------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class Pattern:
    """An NFA with numbered states: a state consumes a letter, or is an epsilon state, perhaps only at one end."""

    alphabet: Alphabet
    _letters: list[int] = field(default_factory=list)  # per state: the letters it consumes; 0: epsilon
    _next: list[tuple[int, ...]] = field(default_factory=list)
    _edges: list[bool | None] = field(default_factory=list)  # True: at the beginning only; False: at the end only
    _start: int = 0
    _steps: int = 0
    _known: dict[tuple[frozenset[int], str], frozenset[int]] = field(default_factory=dict)
    _known_states: int = 0

    def matches(self, name: str) -> bool:
        """Whether the whole name matches."""
        states = self._reached([self._start], at_begin=True, at_end=not name)
        for place, letter in enumerate(name):
            last = place == len(name) - 1
            states = self._after(states, letter, last)
            if not states:
                return False
        return 0 in states

    def _after(self, states: frozenset[int], letter: str, last: bool) -> frozenset[int]:
        key = states, letter + "$" if last else letter
        found = self._known.get(key)
        if found is None:
            bit = self.alphabet.bits.get(letter, 0)
            moved = [self._next[state][0] for state in states if self._letters[state] & bit]
            found = self._reached(moved, at_begin=False, at_end=last)
            self._remember(key, found)
        return found

    def _remember(self, key: tuple[frozenset[int], str], found: frozenset[int]) -> None:
        if len(self._known) >= MOST_REMEMBERED or self._known_states + len(found) > MOST_REMEMBERED_STATES:
            self._known.clear()
            self._known_states = 0
        self._known[key] = found
        self._known_states += len(found)

    def _reached(self, states: list[int], *, at_begin: bool, at_end: bool) -> frozenset[int]:
        found, waiting = set(states), list(states)
        while waiting:
            state = waiting.pop()
            edge = self._edges[state]
            if self._letters[state] or (edge is True and not at_begin) or (edge is False and not at_end):
                continue
            fresh = [each for each in self._next[state] if each not in found]
            found.update(fresh)
            waiting += fresh
        return frozenset(found)

    # -- made ---------------------------------------------------------------------------------------------------------
    def _state(self, letters: int, following: tuple[int, ...], edge: bool | None = None) -> int:
        if len(self._letters) >= MOST_STATES:
            raise BadPattern("expression too large")
        self._letters.append(letters)
        self._next.append(following)
        self._edges.append(edge)
        return len(self._letters) - 1

    def _build(self, node: _Node, following: int) -> int:
        """Build the states of `node`, followed by state `following`; return its first state."""
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise BadPattern("expression too large")
        if isinstance(node, _Letter):
            return self._state(node.allowed, (following,) if node.allowed else ())
        if isinstance(node, _Edge):
            return self._state(0, (following,), node.begin)
        if isinstance(node, _Choice):
            return self._state(0, tuple(self._build(part, following) for part in node.parts))
        if isinstance(node, _Sequence):
            for part in reversed(node.parts):
                following = self._build(part, following)
            return following
        if node.most is None:
            again = self._state(0, ())
            self._next[again] = (self._build(node.part, again), following)
            following = again
        else:
            for _ in range(node.most - node.least):
                following = self._state(0, (self._build(node.part, following), following))
        for _ in range(node.least):
            following = self._build(node.part, following)
        return following


def compiled(text: str, alphabet: Alphabet = OF_TOPICS) -> Pattern:
    """Compile a pattern for names over this alphabet. Raises BadPattern."""
    if len(text) > MOST_LENGTH or len(text) * len(alphabet.bits) > MOST_WORK:
        raise BadPattern("expression too large")
    node = _Reader(text, alphabet).read()
    pattern = Pattern(alphabet)
    pattern._state(0, ())  # state 0: accepting
    pattern._start = pattern._build(node, 0)
    return pattern
