"""Rules that map Kerberos principals to user names; compared with Kafka in tests/contract/test_kerberos_names.py."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_broker.security.kerberos_names import KerberosRuleError, NoLocalName, local_names

pytestmark = pytest.mark.spec("CLI-12")


@pytest.mark.parametrize(
    ("rules", "principal", "name"),
    [
        (["DEFAULT"], "alice@EXAMPLE.COM", "alice"),
        (["DEFAULT"], "kafka/host.example@EXAMPLE.COM", "kafka"),
        (["DEFAULT"], "alice", "alice"),
        (["RULE:[1:$1](.*)s/^a/b/"], "alice@OTHER", "blice"),
        (["RULE:[1:$1@$0](.*@OTHER)s/@.*//", "DEFAULT"], "bob@OTHER", "bob"),
        (["RULE:[1:$1@$0](.*@OTHER)s/@.*//", "DEFAULT"], "bob@EXAMPLE.COM", "bob"),
        (["RULE:[2:$2.$1]"], "kafka/host@OTHER", "host.kafka"),
        (["RULE:[2:$1;$2](^.*;admin$)s/;admin$//"], "App.service/admin@X", "App.service"),
        (["RULE:[1:$1]/L"], "ALICE@X", "alice"),
        (["RULE:[1:$1]/U"], "alice@X", "ALICE"),
        (["RULE:[1:$1](.*)s/a/-/g"], "banana@X", "b-n-n-"),
        (["RULE:[1:$1](.*)s/a/-/"], "banana@X", "b-nana"),
        (["RULE:[1:$1](.*)s/(b)(a)/$2$1$$/".replace("$$", r"\$")], "ban@X", "ab$n"),
        (["RULE:[1:$1](.*)s/(b)/$12/"], "ban@X", "b2an"),
    ],
)
def test_the_first_rule_that_applies_makes_the_name(rules: list[str], principal: str, name: str) -> None:
    assert local_names(rules, "EXAMPLE.COM")(principal) == name


@pytest.mark.parametrize(
    ("rules", "principal", "why"),
    [
        (["DEFAULT"], "alice@OTHER", r"No rules apply to alice@OTHER, rules \[DEFAULT\]"),
        ([], "alice@EXAMPLE.COM", "No rules apply"),
        (["RULE:[2:$1]"], "alice@EXAMPLE.COM", "No rules apply"),
        (["RULE:[1:$1](b.*)"], "alice@EXAMPLE.COM", "No rules apply"),
        (["RULE:[1:$1@$0]"], "alice@X", "Non-simple name alice@X"),
        (["RULE:[1:$2]"], "alice@X", r"\$2 of .* is outside of the valid range 0 to 1"),
        (["DEFAULT"], "a/b/c@EXAMPLE.COM", "Malformed Kerberos name"),
        (["DEFAULT"], r"a\@b@EXAMPLE.COM", "Malformed Kerberos name"),
    ],
)
def test_who_is_nobody_has_no_name(rules: list[str], principal: str, why: str) -> None:
    with pytest.raises(NoLocalName, match=why):
        local_names(rules, "EXAMPLE.COM")(principal)


@pytest.mark.parametrize(
    "rule",
    [
        "", "default", "RULE", "RULE:[1:$1", "RULE:[1$1]", "RULE:[1:$1](a", "RULE:[1:$1]s/a/", "RULE:[1:$1]/X",
        "DEFAULT/L", "RULE:[:$1]", "RULE:[1:$]", "RULE:[1:$1](*)", "RULE:[1:$1]s/(/x/", "RULE:[1:$1]s/a/$1/",
        "RULE:[1:$1]s/a/\\/", "RULE:[99999999999:$1]",
    ],
)  # fmt: skip
def test_what_is_no_rule_is_refused_at_the_start(rule: str) -> None:
    with pytest.raises(KerberosRuleError, match="Invalid rule: "):
        local_names([rule], "EXAMPLE.COM")


@given(st.lists(st.text("RULE:[]12$@()s/.*agLU\\DF", max_size=20), max_size=3), st.text("ab/@.X", max_size=12))
def test_any_text_is_a_rule_or_refused_and_a_name_has_no_parts(rules: list[str], principal: str) -> None:
    try:
        name = local_names([*rules, "DEFAULT"], "X")(principal)
    except (KerberosRuleError, NoLocalName):
        return
    assert name == principal or not set(name) & set("/@")
