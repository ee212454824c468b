"""Signed tokens: what makes one valid, and everything that makes one invalid."""

from __future__ import annotations

import json
import time
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from tests.identity_provider import AUDIENCE, CURVES, ISSUER, claims, jwk, new_key, raw_token, signed

from ballast_broker.security.oauth_settings import TokenRules
from ballast_broker.security.tokens import (
    ALGORITHMS,
    MOST_KEYS,
    MOST_S,
    Key,
    KeySetError,
    TokenError,
    UnknownKey,
    identity,
    identity_of,
    keys_of,
)

pytestmark = pytest.mark.spec("CLI-06")
RULES = TokenRules(frozenset({AUDIENCE}), ISSUER)
OF_RSA = new_key()
OTHER = new_key()
OF_CURVES = {algorithm: new_key(algorithm) for algorithm in CURVES}
NOW = 1_800_000_000


def key_set(*keys: dict[str, Any]) -> tuple[Key, ...]:
    return keys_of(json.dumps({"keys": keys}).encode())


KEYS = key_set(jwk(OF_RSA, "one", use="sig"), *(jwk(key, name) for name, key in OF_CURVES.items()))


def at_that_time(**changes: Any) -> dict[str, Any]:
    return claims(**{"iat": NOW - 60, "exp": NOW + 600} | changes)


def check(token: str, rules: TokenRules = RULES, keys: tuple[Key, ...] = KEYS) -> str:
    return identity(token, keys, rules, time.time()).name


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_whoever_signs_with_a_published_key_is_believed(algorithm: str) -> None:
    key, kid = (OF_CURVES[algorithm], algorithm) if algorithm in CURVES else (OF_RSA, "one")
    found = identity(signed(key, kid, algorithm, iat=NOW, exp=NOW + 60), KEYS, RULES, NOW)
    assert found == ("alice", NOW + 60)


def test_a_token_need_not_name_its_key() -> None:
    assert check(signed(OF_RSA, None)) == "alice"
    with pytest.raises(UnknownKey):  # it may be one that has been published since
        check(signed(OTHER, None))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"exp": NOW - 31}, "it has ended 31 s ago"),
        ({"exp": None}, "its exp is missing"),
        ({"exp": "tomorrow"}, "its exp is missing, or no time"),
        ({"exp": True}, "no time"),
        ({"exp": -1}, "no time"),
        ({"iat": None}, "its iat is missing"),
        ({"iat": [1]}, "no time"),
        ({"iat": NOW + 700}, "it ends before it begins"),
        ({"nbf": NOW + 90}, "it begins in 90 s"),
        ({"nbf": "x"}, "its nbf is missing, or no time"),
        ({"nbf": NOW + 5, "exp": NOW + 4}, "it ends before it begins"),
        ({"iss": "https://other.example"}, "its issuer is 'https://other.example'"),
        ({"iss": None}, "its issuer is None"),
        ({"iss": [ISSUER]}, "its issuer is"),
        ({"aud": "other"}, "its audience is 'other'"),
        ({"aud": ["other", 1]}, "its audience is ['other', 1]"),
        ({"aud": []}, "its audience is []"),
        ({"aud": None}, "its audience is None"),
        ({"sub": None}, "it has no sub"),
        ({"sub": ""}, "it has no sub"),
        ({"sub": " \t\n"}, "it has no sub"),
        ({"sub": 7}, "it has no sub"),
        ({"sub": ["alice"]}, "it has no sub"),
        ({"scope": ""}, "its scope has no name"),
        ({"scope": ["a", " "]}, "its scope has no name"),
        ({"scope": ["a", 1]}, "its scope has no name"),
        ({"scope": ["a", "b", "a"]}, "its scope says something twice"),
    ],
)
def test_what_is_signed_and_yet_does_not_count(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(TokenError) as refused:
        identity_of(at_that_time(**changes), RULES, NOW)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"exp": NOW - 29}, "alice"),  # within the skew
        ({"nbf": NOW + 29}, "alice"),
        ({"exp": NOW + 60.5}, "alice"),
        ({"aud": ["other", AUDIENCE]}, "alice"),
        ({"sub": " alice\n"}, "alice"),
        ({"sub": "Ålice, of=the\u2028shop"}, "Ålice, of=the\u2028shop"),
        ({"scope": None}, "alice"),
        ({"scope": {"a": 1}}, "alice"),
        ({"scope": ["a", "b"]}, "alice"),
    ],
)
def test_what_counts(changes: dict[str, Any], name: str) -> None:
    assert identity_of(at_that_time(**changes), RULES, NOW).name == name


def test_a_token_may_hold_for_longer_than_years_have_names() -> None:
    assert identity_of(at_that_time(exp=1e300), RULES, NOW).ends_at_s == MOST_S
    for strange in (float("nan"), float("inf")):
        with pytest.raises(TokenError, match="no time"):
            identity_of(at_that_time(exp=strange), RULES, NOW)


def test_a_name_that_is_no_text_is_none() -> None:
    with pytest.raises(TokenError, match="its sub is no text"):
        check(signed(OF_RSA, sub="\ud800"))


def test_without_expectations_issuer_and_audience_are_as_they_are() -> None:
    anybody = TokenRules()
    assert check(signed(OF_RSA, iss="x", aud=None), anybody) == "alice"
    with pytest.raises(TokenError, match="its audience is 'kafka'"):  # RFC 7519: we are not named
        check(signed(OF_RSA), anybody)


def test_claims_may_have_other_names() -> None:
    rules = TokenRules(frozenset({AUDIENCE}), ISSUER, scope_claim="scp", name_claim="client_id")
    token = signed(OF_RSA, sub=None, scope="", scp=["a"], client_id="service-7")
    assert check(token, rules) == "service-7"
    with pytest.raises(TokenError, match="it has no client_id"):
        check(signed(OF_RSA), rules)


# -- signatures


def test_a_signature_by_somebody_else_is_wrong() -> None:
    with pytest.raises(TokenError, match="its signature is wrong") as refused:
        check(signed(OTHER, "one"))
    assert not isinstance(refused.value, UnknownKey)


def test_what_was_changed_after_it_was_signed_is_wrong() -> None:
    head, body, signature = signed(OF_RSA).split(".")
    other = signed(OTHER, sub="admin").split(".")[1]
    for token in (f"{head}.{other}.{signature}", f"{head}.{body}.{signature[:-8]}", f"{head}.{body}.{'A' * 342}"):
        with pytest.raises(TokenError, match=r"its signature is wrong|it cannot be read"):
            check(token)


def test_a_key_that_is_not_published_may_be_so_soon() -> None:
    with pytest.raises(UnknownKey, match="no key is known for RS256 and kid 'two'"):
        check(signed(OTHER, "two"))
    with pytest.raises(UnknownKey):
        check(signed(OF_RSA), keys=())


def test_a_public_key_is_no_secret_to_sign_with() -> None:
    """A server that accepted HS256 with the public key as the secret would let in everybody who knows that key."""
    public = OF_RSA.public_key()
    secrets = [public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo), json.dumps(jwk(OF_RSA)).encode()]
    for secret in secrets:
        token = _hmac(secret, {"alg": "HS256", "kid": "one"})
        with pytest.raises(TokenError, match="its algorithm is 'HS256'"):
            check(token)


def _hmac(secret: bytes, header: dict[str, Any]) -> str:
    import base64
    import hmac

    unsigned = raw_token(header, claims(), b"").rstrip(".")
    made = base64.urlsafe_b64encode(hmac.digest(secret, unsigned.encode(), "sha256")).rstrip(b"=").decode()
    return f"{unsigned}.{made}"


@pytest.mark.parametrize("algorithm", ["none", "None", "nOnE", "", "HS512", "EdDSA", "ES256K", 5, None, ["RS256"], {}])
def test_only_algorithms_with_a_public_key_count(algorithm: Any) -> None:
    with pytest.raises(TokenError, match="its algorithm is"):
        check(raw_token({"alg": algorithm, "kid": "one"}, claims()))


def test_a_token_without_a_signature_is_none() -> None:
    with pytest.raises(TokenError, match="no signed token of three parts"):
        check(jwt.encode(claims(), None, "none"))  # type: ignore[arg-type]


def test_a_key_is_used_for_its_own_algorithms_alone() -> None:
    keys = key_set(jwk(OF_RSA, "one", alg="RS256"))
    assert check(signed(OF_RSA), keys=keys) == "alice"
    for algorithm in ("RS512", "PS256"):
        with pytest.raises(UnknownKey):
            check(signed(OF_RSA, "one", algorithm), keys=keys)
    with pytest.raises(UnknownKey):
        check(signed(OF_CURVES["ES256"], "one", "ES256"))
    with pytest.raises(UnknownKey):
        check(signed(OF_CURVES["ES384"], "ES256", "ES384"))


def test_what_a_header_points_at_is_not_looked_at() -> None:
    """Neither an embedded key, nor the URL of one."""
    header = {"kid": "mine", "jwk": jwk(OTHER), "jku": "http://127.0.0.1:1/", "x5u": "http://127.0.0.1:1/"}
    with pytest.raises(UnknownKey):
        check(jwt.encode(claims(), OTHER, "RS256", headers=header))
    header["kid"] = "one"
    with pytest.raises(TokenError, match="its signature is wrong"):
        check(jwt.encode(claims(), OTHER, "RS256", headers=header))


def test_what_is_critical_is_not_passed_over() -> None:
    token = jwt.encode(claims(), OF_RSA, "RS256", headers={"kid": "one", "crit": ["x"], "x": 1})
    with pytest.raises(TokenError):
        check(token)


@pytest.mark.parametrize(
    "token",
    ["", ".", "..", "...", "a.b", "a.b.c", "a.b.c.d", ".b.c", "a..c", "a.b.", "x" * 16_000, "." * 16_000, "é.é.é"],
)
def test_what_is_no_token(token: str) -> None:
    with pytest.raises(TokenError) as refused:
        check(token)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize("part", [b"", b"x", b"[]", b"7", b"null", b"[" * 9000, b'{"a":' * 2000, b"\xff", b"1" * 9000])
def test_what_is_no_json_is_no_token(part: bytes) -> None:
    for token in (raw_token(part, claims()), jwt.PyJWS().encode(part, OF_RSA, "RS256", headers={"kid": "one"})):
        with pytest.raises(TokenError):
            check(token)


@given(st.text(alphabet=st.characters(max_codepoint=0x7F), max_size=200))
def test_no_text_breaks_the_check(text: str) -> None:
    with pytest.raises(TokenError):
        check(text)


@given(st.dictionaries(st.sampled_from(["alg", "kid", "crit", "b64", "typ"]), st.none() | st.text() | st.integers()))
def test_no_header_breaks_the_check(header: dict[str, Any]) -> None:
    with pytest.raises(TokenError):
        check(raw_token(header, claims()))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["exp", "iat", "nbf", "iss", "aud", "sub", "scope"]), JSON))
def test_no_claims_break_the_check(found: dict[str, Any]) -> None:
    try:
        name, ends_at_s = identity_of(at_that_time() | found, RULES, NOW)
    except TokenError:
        return
    assert name.encode()
    assert NOW - RULES.skew_s < ends_at_s <= MOST_S


# -- sets of keys


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "it is no JSON"),
        (b"\xff", "it is no JSON"),
        (b"[" * 100_000, "it is no JSON"),
        (b"[]", 'no list of "keys"'),
        (b'{"keys": {}}', 'no list of "keys"'),
        (b'{"keys": []}', "it has no key of RSA"),
        (b'{"keys": [7, null, {}]}', "it has no key of RSA"),
        (b'{"keys": [' + b"{}," * MOST_KEYS + b"{}]}", f"it has {MOST_KEYS + 1} keys"),
    ],
)
def test_what_is_no_set_of_keys(text: bytes, says: str) -> None:
    with pytest.raises(KeySetError) as refused:
        keys_of(text)
    assert says in str(refused.value)


def test_keys_for_other_purposes_are_passed_over() -> None:
    good = jwk(OF_RSA, "good")
    others = [
        jwk(OTHER, "to encrypt", use="enc"),
        jwk(new_key(bits=1024), "too small"),
        {"kty": "oct", "kid": "secret", "k": "AAAA"},
        {"kty": "OKP", "crv": "Ed25519", "kid": "edwards", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"},
        {"kty": "RSA", "kid": "half", "n": good["n"]},
        {"kty": "RSA", "kid": "no number", "n": "é", "e": "AQAB"},
        jwk(OTHER, "of another algorithm", alg="HS256"),
        jwk(OTHER, "of none", alg=["RS256"]),
        jwk(OTHER, 7),  # type: ignore[arg-type]
    ]
    assert [key.name for key in key_set(*others, good)] == ["good"]


def test_of_a_private_key_only_its_public_half_is_used() -> None:
    assert isinstance(OF_RSA, rsa.RSAPrivateKey)
    private = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(OF_RSA)) | {"kid": "one"}
    assert check(signed(OF_RSA), keys=key_set(private)) == "alice"
