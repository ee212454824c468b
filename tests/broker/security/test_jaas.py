"""Parses one login module from a JAAS property, with quotes; errors do not show secrets."""

from __future__ import annotations

import pytest

from ballast_broker.security.jaas import JaasError, parse_login_module

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.spec("CLI-06")
def test_a_login_module_is_read() -> None:
    module = parse_login_module(f'{PLAIN} required username="node" password=\'x\' user_alice="a;b = \\"c\\" \\\\ ü";')
    assert module.name == PLAIN
    assert module.options == {"username": "node", "password": "'x'", "user_alice": 'a;b = "c" \\ ü'}


def test_it_may_be_written_on_several_lines_with_comments_and_without_quotes() -> None:
    text = f"{PLAIN} REQUIRED // who we are\n  username=node\n /* and\n how */ password = secret ;"
    assert parse_login_module(text).options == {"username": "node", "password": "secret"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "does not contain any login modules"),
        ("  // nothing", "does not contain any login modules"),
        ("; required", "Login module not specified"),
        (f"{PLAIN};", "control flag not specified"),
        (f'{PLAIN} username="hush";', "control flag not specified"),
        (f'{PLAIN} required username="hush"', "not terminated by semi-colon"),
        (f"{PLAIN} required username;", "Value not specified for key 'username'"),
        (f"{PLAIN} required username=;", "Value not specified for key 'username'"),
        (f'{PLAIN} required username "hush";', "Value not specified for key 'username'"),
        (f"{PLAIN} required username=node password=a hush;", "'password' in JAAS config is followed by something else"),
        (f"{PLAIN} required password=a=hush;", "'password' in JAAS config is followed by something else"),
        (f"{PLAIN} required username=node password=;", "Value not specified for key 'password'"),
        (f'{PLAIN} required password="hush;', "a quote in JAAS config has no end"),
        (f"{PLAIN} required; {PLAIN} required;", "more than one login module"),
    ],
)
def test_what_is_wrong_is_told_without_the_secret(text: str, says: str) -> None:
    with pytest.raises(JaasError) as refused:
        parse_login_module(text)
    assert says in str(refused.value)
    assert "hush" not in str(refused.value)
