"""Patterns of topic names mean what they mean to RE2/J, with which Apache Kafka reads them: good ones and bad."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from random import Random

import pytest

from ballast_broker.coordinator.consumers.patterns import OF_TOPICS, Alphabet, BadPattern, compiled

pytestmark = [pytest.mark.java, pytest.mark.timeout(120), pytest.mark.spec("CLI-04")]

PATTERNS = 5_000
LETTERS = "abcABZ09._-"
ANY_LETTERS = "abBZ09_- :/éÉß\u03c3\u03c2\u017f\u212aK\u2028"  # of transactional ids, in which anything may be
ESCAPES = [
    r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", r"\.", r"\-", r"\_", r"\x61", r"\x{62}", r"\Qa.b\E", r"\n", r"\t",
    r"\060", r"\101", r"\0", r"\1", r"\x6", r"\x{6_1}",
]  # fmt: skip
OF_SETS = ["a", "b-c", "A-Z", "0-9", r"\d", "[:alpha:]", "[:^digit:]", "_", ".", "-", r"\-", r"\w", "[:punct:]", "^",
           "]", "[:", "[", r"\x61"]  # fmt: skip
REPEATED = ["*", "+", "?", "{2}", "{1,}", "{0,2}", "{,2}", "{1,2}?", "*?", "+?", "??", "{0}", "{01}", "{"]
GROUPS = ["(", "(?:", "(?i)(?:", "(?i:", "(?-i:", "(?s:", "(?i-s:", "(?-:", "(?P<1a>", "(?<b>", "(?P<b>", "(?i)("]
SLIPS = ["", "(", ")", "[", "]", "{", "}", "*", "?", "+", "\\", "|", "a", "^", "(?", "(?i)", ":", "-", "{2}"]
FIXED_NAMES = ["a", "ab", "b", "a.b", "A", "0"]


class Maker:
    """Makes patterns by the grammar, and spoils some of them."""

    def __init__(self, seed: int, letters: str) -> None:
        self._random = Random(seed)
        self._letters = letters

    def pattern(self) -> str:
        made, random = self._choice(3), self._random
        if made and random.random() < 0.3:
            place = random.randrange(len(made))
            made = made[:place] + random.choice(SLIPS) + made[place + random.randint(0, 1) :]
        return made

    def name(self) -> str:
        return "".join(self._random.choice(self._letters) for _ in range(self._random.randint(1, 4)))

    def _choice(self, depth: int) -> str:
        return "|".join(self._sequence(depth) for _ in range(self._random.choice([1, 1, 1, 2, 3])))

    def _sequence(self, depth: int) -> str:
        return "".join(self._repeated(depth) for _ in range(self._random.randint(0, 4)))

    def _repeated(self, depth: int) -> str:
        return self._atom(depth) + (self._random.choice(REPEATED) if self._random.random() < 0.35 else "")

    def _atom(self, depth: int) -> str:
        random, kind = self._random, self._random.random()
        if kind < 0.4 or (kind >= 0.8 and not depth):
            return random.choice(self._letters)
        if kind < 0.5:
            return random.choice(ESCAPES)
        if kind < 0.7:
            parts = "".join(random.choice(OF_SETS) for _ in range(random.randint(1, 3)))
            return f"[{random.choice(['', '^'])}{parts}]"
        if kind < 0.8:
            return random.choice([".", "^", "$", r"\A", r"\z"])
        return f"{random.choice(GROUPS)}{self._choice(depth - 1)})"


def as_re2j(asked: list[list[str]]) -> list[str]:
    jars, program = os.environ["BALLAST_KAFKA_JARS"], Path(__file__).with_name("Patterns.java")
    lines = "".join("\t".join(each) + "\n" for each in asked)
    command = ["java", "-Dfile.encoding=UTF-8", "-cp", f"{jars}/*", str(program)]
    return subprocess.run(
        command, input=lines, stdout=subprocess.PIPE, text=True, check=True, timeout=100
    ).stdout.splitlines()


def as_ours(alphabet: Alphabet, pattern: str, *names: str) -> str:
    try:
        made = compiled(pattern, alphabet)
    except BadPattern:
        return "bad"
    return "".join("y" if made.matches(name) else "n" for name in names)


@pytest.mark.parametrize(
    ("seed", "letters", "alphabet"),
    [(1, LETTERS, OF_TOPICS), (2, LETTERS, OF_TOPICS), (3, ANY_LETTERS, Alphabet(LETTERS + ANY_LETTERS))],
)
def test_as_re2j(seed: int, letters: str, alphabet: Alphabet) -> None:
    maker = Maker(seed, letters)
    asked: list[list[str]] = []
    while len(asked) < PATTERNS:
        pattern = maker.pattern()
        if r"\b" in pattern or r"\B" in pattern:  # boundaries of words: a named difference
            continue
        asked.append([pattern, *FIXED_NAMES, *(maker.name() for _ in range(8))])
    answers = as_re2j(asked)
    ours = [as_ours(alphabet, *each) for each in asked]
    different = [(each, we, they) for each, we, they in zip(asked, ours, answers, strict=True) if we != they]
    assert not different, f"{len(different)} of {PATTERNS}: {different[:5]}"
    assert 0.05 < ours.count("bad") / PATTERNS < 0.5
    assert sum("y" in each for each in ours) > PATTERNS / 10
