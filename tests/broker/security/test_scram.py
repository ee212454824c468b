"""SCRAM against the example of RFC 7677, against itself, and against peers that lack the secret."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_broker.security.scram import (
    HASHES,
    Credential,
    ScramClient,
    ScramError,
    ScramServer,
    credential_of,
    salted_password,
)

SECRET = b"of this listener"
# RFC 7677, 3.
NONCE, SERVER_NONCE = "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
FINAL = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def kept(mechanism: str, password: str, salt: bytes = b"salt", iterations: int = 4096) -> Credential:
    return credential_of(mechanism, salted_password(mechanism, password, salt, iterations), salt, iterations)


def server_of(mechanism: str, users: dict[str, Credential]) -> ScramServer:
    return ScramServer(mechanism, users.get, "of-the-server", SECRET)


@pytest.mark.spec("CLI-06")
def test_the_example_of_the_rfc_from_both_sides() -> None:
    credential = kept("SCRAM-SHA-256", "pencil", base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="))
    server = ScramServer("SCRAM-SHA-256", {"user": credential}.get, SERVER_NONCE, SECRET)
    client = ScramClient("SCRAM-SHA-256", "user", "pencil", NONCE)
    assert client.first() == FIRST
    assert server.step(FIRST) == SERVER_FIRST
    assert client.final(SERVER_FIRST) == FINAL
    assert not server.done
    assert server.step(FINAL) == SERVER_FINAL
    assert (server.done, server.user) == (True, "user")
    client.check(SERVER_FINAL)


# HMAC fills up a short key with zero bytes: to SCRAM "" and "\0" are the same password.
without_zeros = st.text().filter(lambda text: "\0" not in text)


@given(st.sampled_from(sorted(HASHES)), without_zeros.filter(bool), without_zeros, without_zeros)
@pytest.mark.spec("CLI-06")
def test_who_knows_the_password_comes_in_and_nobody_else(mechanism: str, user: str, password: str, other: str) -> None:
    server = server_of(mechanism, {user: kept(mechanism, password)})
    client = ScramClient(mechanism, user, other, "of-the-client")
    asked = client.final(server.step(client.first()))
    if other == password:
        client.check(server.step(asked))
        assert (server.done, server.user) == (True, user)
    else:
        with pytest.raises(ScramError, match="Invalid client credentials"):
            server.step(asked)
        assert not server.done


def test_a_name_that_nobody_has_is_asked_like_any_other() -> None:
    answers = set()
    for _ in range(2):
        server = server_of("SCRAM-SHA-512", {})
        client = ScramClient("SCRAM-SHA-512", "nobody", "x", "of-the-client")
        answer = server.step(client.first())
        answers.add(answer)
        with pytest.raises(ScramError, match="Invalid client credentials"):
            server.step(client.final(answer))
        assert not server.done
    assert len(answers) == 1, "asked twice, another salt would tell"


def test_the_keys_of_nobody_let_nobody_in() -> None:
    """A proof that matches the zeros kept for an unknown user is refused all the same."""
    import hashlib
    import hmac

    server = server_of("SCRAM-SHA-256", {})
    answer = server.step(b"n,,n=nobody,r=abc").decode()
    final = f"c=biws,r={answer.partition(',')[0][2:]}"
    exchange = f"n=nobody,r=abc,{answer},{final}".encode()
    signature = hmac.digest(bytes(hashlib.sha256().digest_size), exchange, "sha256")
    with pytest.raises(ScramError):
        server.step(f"{final},p={base64.b64encode(signature).decode()}".encode())
    assert not server.done


@pytest.mark.parametrize(
    "first",
    [
        b"", b"\xff", b"n,,", b"n,,n=,r=abc", b"n,,n=user", b"p=tls-unique,,n=user,r=abc", b"n,,m=x,n=user,r=abc",
        b"n,a=other,n=user,r=abc", b"n,,n=us=er,r=abc", b"n,,n=user,r=a b",
    ],
)  # fmt: skip
def test_a_first_message_that_is_none_is_refused(first: bytes) -> None:
    with pytest.raises(ScramError):
        server_of("SCRAM-SHA-256", {"user": kept("SCRAM-SHA-256", "x")}).step(first)


@pytest.mark.parametrize(
    ("what", "by"),
    [
        (b"c=biws", b"c=eSws"),
        (b"c=biws", b"c=!!!"),
        (b"c=biws", "c=é".encode()),
        (b"of-the-server", b"of-another"),
        (b"p=", b"p=AAAA"),
        (b"p=", "p=é".encode()),
        (b"p=", b"q="),
    ],
)
def test_a_last_message_that_was_changed_is_refused(what: bytes, by: bytes) -> None:
    server = server_of("SCRAM-SHA-256", {"user": kept("SCRAM-SHA-256", "x")})
    client = ScramClient("SCRAM-SHA-256", "user", "x", "of-the-client")
    final = client.final(server.step(client.first()))
    assert what in final
    with pytest.raises(ScramError):
        server.step(final.replace(what, by))
    assert not server.done


def test_a_server_that_does_not_know_the_password_is_found_out() -> None:
    client = ScramClient("SCRAM-SHA-256", "user", "x", "abc")
    client.final(b"r=abcdef,s=c2FsdA==,i=4096")
    with pytest.raises(ScramError, match="does not know the password"):
        client.check(b"v=AAAA")


@pytest.mark.parametrize(
    "answer",
    [
        b"r=xyz,s=c2FsdA==,i=4096",
        b"r=abc,s=c2FsdA==,i=4096",
        b"r=abcd,s=c2FsdA==,i=1",
        b"e=x",
        "r=abcd,s=é,i=4096".encode(),
    ],
)
def test_a_server_that_answers_amiss_is_not_believed(answer: bytes) -> None:
    with pytest.raises(ScramError):
        ScramClient("SCRAM-SHA-256", "user", "x", "abc").final(answer)


def test_a_password_is_worked_out_once_for_a_salt_and_no_wrong_one_is_kept() -> None:
    found: dict[tuple[bytes, int], bytes] = {}

    def comes_in(password: str, salt: bytes) -> None:
        server = server_of("SCRAM-SHA-256", {"user": kept("SCRAM-SHA-256", password, salt)})
        client = ScramClient("SCRAM-SHA-256", "user", password, "abc", found)
        client.check(server.step(client.final(server.step(client.first()))))

    comes_in("x", b"salt")
    (first,) = found.values()
    comes_in("x", b"salt")
    assert list(found.values()) == [first]
    for n in range(20):
        comes_in("x", b"another %d" % n)
    assert len(found) <= 8
