"""Names that rules make of principals are those that Apache Kafka makes."""

from __future__ import annotations

import random
import re
import subprocess
from pathlib import Path

import pytest
from tests.apache_java import compiled, java

from ballast_broker.security.kerberos_names import KerberosRuleError, NoLocalName, local_names

CASES = 600
PRINCIPALS = (
    "alice@EXAMPLE.COM", "Alice@OTHER", "kafka/host.example@EXAMPLE.COM", "kafka/Host@OTHER", "alice", "kafka/host",
    "@EXAMPLE.COM", "a/@EXAMPLE.COM", "/b@EXAMPLE.COM", "a/b/c@EXAMPLE.COM", "a@b@EXAMPLE.COM", "banana@EXAMPLE.COM",
    "app.admin@EXAMPLE.COM", "x1y22@EXAMPLE.COM",
)  # fmt: skip
FORMATS = ("$1", "$1@$0", "$2", "$0", "$1.$2", "$1;$2", "x", "", "$1$1", "$3", "$", "$1$", "-$1-")
MATCHES = ("", "(.*)", "(a.*)", "(.*@OTHER)", "(.*;host)", "([A-Z].*)", "(alice|kafka)", "(.)", "(*)", "(\\w+\\.\\w+)")
FROM = ("a", "@.*", ";.*", "(.)(.)", "^", "$", "[", "\\d+", "(x)?y", "\\.", "")
TO = ("", "b", "$1", "$2$1", "$12", "$3", "\\$", "\\\\", "$", "\\", "-")
ENDS = ("", "/L", "/U", "L", "U", "/", "/X", " ")


def rule(chance: random.Random) -> str:
    kind = chance.random()
    if kind < 0.25:
        return "DEFAULT"
    if kind < 0.3:
        return chance.choice(("", "default", "RULE", "DEFAULTX", "RULE:[1:$1", "RULE:[:$1]", "RULE:[0:$1]"))
    components, form = chance.choice("1122"), chance.choice(FORMATS)
    text = f"RULE:[{components}:{form}]{chance.choice(MATCHES)}"
    if chance.random() < 0.6:
        text += f"s/{chance.choice(FROM)}/{chance.choice(TO)}/{chance.choice(('', 'g'))}"
    return text + (chance.choice(ENDS) if chance.random() < 0.4 else "")


def ours(principal: str, rules: list[str]) -> str:
    try:
        name_of = local_names(rules, "EXAMPLE.COM")
    except KerberosRuleError:
        return "- rule"
    try:
        return f"+ {name_of(principal)}"
    except NoLocalName:
        return "- name"


def makes_no_name(rule: str) -> bool:
    """What Apache Kafka finds out when somebody comes whom it is about: here a node does not start with it."""
    form, replaced = re.match(r"RULE:\[\d*:([^\]]*)", rule), re.search(r"s/([^/]*)/([^/]*)/", rule)
    if replaced is not None:
        groups = re.findall(r"(?<!\\)\$(\d)", replaced[2])
        if replaced[2] in ("$", "\\") or any(int(each) > replaced[1].count("(") for each in groups):
            return True
    return form is not None and re.search(r"\$(?!\d)", form[1]) is not None


@pytest.mark.java
@pytest.mark.spec("CLI-12")
def test_names_are_those_of_apache_kafka() -> None:
    chance = random.Random(12)
    cases = [
        (chance.choice(PRINCIPALS), [rule(chance) for _ in range(chance.choice((1, 1, 2, 3)))]) for _ in range(CASES)
    ]
    asked = "".join("\t".join((principal, *rules)) + "\n" for principal, rules in cases)
    program = Path(__file__).with_name("KerberosNames.java")
    done = subprocess.run(
        java("KerberosNames", classes=[compiled(program)]),
        input=asked, capture_output=True, text=True, timeout=50, check=True,
    )  # fmt: skip
    theirs = done.stdout.splitlines()
    found = [ours(*case) for case in cases]
    different = [
        (case, other, own)
        for case, other, own in zip(cases, theirs, found, strict=True)
        if other != own and not (own == "- rule" and any(map(makes_no_name, case[1])))
    ]
    assert not different, "\n".join(map(str, different[:20]))
    assert sum(each.startswith("+") for each in found) > CASES // 5
