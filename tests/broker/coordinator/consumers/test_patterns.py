"""Patterns of topic names: what they match is what Python's `re` matches, in a time that is bounded."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_broker.coordinator.consumers.patterns import (
    MOST_REMEMBERED_STATES,
    OF_TOPICS,
    Alphabet,
    BadPattern,
    compiled,
)

pytestmark = pytest.mark.spec("CLI-04")

atoms = st.sampled_from(["a", "b", "A", "-", r"\.", ".", "[ab]", "[^a]", "[a-c0-9]", r"\d", r"\w", r"[\w-]", "_"])
patterns = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{2,}", "*?"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
        inner.map(lambda part: f"(?i:{part})"),
        inner.map(lambda part: f"^{part}$"),
    ),
    max_leaves=12,
)
names = st.text("abcAB0_-.", min_size=1, max_size=12)


@given(patterns, st.lists(names, max_size=8))
def test_as_pythons_own(text: str, some: list[str]) -> None:
    pattern = compiled(text)
    for name in some:
        assert pattern.matches(name) == (re.fullmatch(text, name) is not None), name


@pytest.mark.parametrize(
    ("text", "matching", "other"),
    [
        ("", [], ["a"]),
        ("a|", ["a"], ["b"]),
        (r"\Qa.b\E+", ["a.b", "a.bb"], ["aab"]),
        (r"[[:alpha:]]+[[:^digit:]]", ["ab", "a-"], ["a1"]),
        ("(?i)orders", ["ORDERS", "Orders"], ["order"]),
        ("(?P<x>a)(?<y>b)", ["ab"], ["a"]),
        ("[]a]+", ["a"], ["b"]),
        ("[a-]", ["-"], ["b"]),
        (r"\x61\x{62}", ["ab"], ["aa"]),
        ("a{,2}", [], ["aa"]),  # no repetition, as in RE2: the braces stand for themselves
        (r"\Aa\z", ["a"], ["aa"]),
        ("a^b|a$b|c", ["c"], ["ab"]),
        ("é|x", ["x"], ["e"]),
        (r"\141\060|\0", ["a0"], ["a", "0"]),
        ("[[:alpha]x|[[:alpha]", ["ax", "a", "l"], ["x", "b"]),
        ("(?P<1a>a)", ["a"], ["b"]),
        ("ab(?i)*C", ["ac", "abbC"], ["abAbC"]),  # flags are nothing that could be repeated
        ("a{01}", [], ["a"]),
    ],
)
def test_what_it_means(text: str, matching: list[str], other: list[str]) -> None:
    pattern = compiled(text)
    assert [name for name in [*matching, *other] if pattern.matches(name)] == matching


@pytest.mark.parametrize(
    ("text", "matching", "other"),
    [
        (".+", ["an id", "Ü/ü"], ["a\nb"]),
        ("(?s).+", ["a\nb"], [""]),
        ("(?s:a.)b.", ["a\nbc"], ["a\nb\n"]),
        ("[^a]", ["\n", "ü"], ["a"]),
        ("[à-ÿ]+", ["ü"], ["Ü"]),
        ("(?i)[à-ÿ]+", ["ü", "Ü"], ["/"]),
        ("(?i)ü", ["Ü"], ["u"]),
        (r"a\sb|[[:punct:]]|\W", ["a b", "/", "ü"], ["a", "a  b"]),
        (r"\n|\t", ["\n"], ["t"]),
    ],
)
def test_what_it_means_to_names_of_any_letters(text: str, matching: list[str], other: list[str]) -> None:
    pattern = compiled(text, Alphabet("".join([*matching, *other])))
    assert [name for name in [*matching, *other] if pattern.matches(name)] == matching


def test_what_takes_long_with_so_many_letters_is_refused() -> None:
    many = Alphabet(map(chr, range(0x10000)))
    assert compiled("[a-zà-ÿ]+", many).matches("aü")
    with pytest.raises(BadPattern, match="too large"):
        compiled("[a-zà-ÿ]" * 20, many)


@pytest.mark.parametrize(
    "text",
    ["(", ")", "a)", "[", "[a", "*", "a**", "a{2}{3}", "a{1001}", "a{3,2}", "\\", r"\y", r"\pL", "(?x)a", "(?=a)",
     r"(a)\1", "(?<!a)b", "[b-a]", "[[:nope:]]", r"\b", "(?P<>a)", r"\x{110000}", r"\x6", r"\x{6_1}", r"\1",
     "(?-:a)", "(?i-)a", "(?P<x>a)(?P<x>b)", "{2}a", "a|{2}", "a{{2}", "(?i)*", "[[:]"],
)  # fmt: skip
def test_what_is_no_pattern_is_refused(text: str) -> None:
    with pytest.raises(BadPattern):
        compiled(text)


@pytest.mark.parametrize(
    "text",
    [
        "((a{1000}){1000}){1000}",
        "(((){1000}){1000}){1000}",
        "(" * 500 + "a" + ")" * 500,
        "a" * 20_000,
        "((" * 90 + "a" + "{2})" * 90 + ")" * 90,
    ],
)
def test_what_would_take_too_long_to_make_is_refused(text: str) -> None:
    with pytest.raises(BadPattern, match=r"too large|too deeply"):
        compiled(text)


def test_what_makes_others_try_for_ever_is_matched_at_once() -> None:
    pattern = compiled("(a+)+b|(a|a)*c|(.*)*d")
    began = time.process_time()
    assert not pattern.matches("a" * 249)
    assert pattern.matches("a" * 248 + "d")
    assert time.process_time() - began < 1


def test_what_is_remembered_of_a_pattern_that_is_in_every_state_at_once_is_bounded() -> None:
    pattern = compiled(".?" * 900)
    letters = "".join(OF_TOPICS.bits)
    for first in range(0, len(letters), 20):
        assert pattern.matches(letters[first:] + letters[:first])
    assert sum(map(len, pattern._known.values())) <= MOST_REMEMBERED_STATES
