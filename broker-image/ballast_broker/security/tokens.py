"""Verifies signed tokens (JWT, RFC 7519): their signatures and claims. PURE.

Nothing in a token is trusted before its signature is verified: of the header only the algorithm and key id are read,
and a key is used only for its own algorithms, so that nobody can sign with a public key. Times are passed in. This
module imports cryptography, so import it only to check tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from ballast_broker.security.oauth_settings import TokenRules

MOST_KEYS = 100
LEAST_RSA_BITS, MOST_RSA_BITS = 2048, 16_384
OF_RSA = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
OF_CURVES = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}
ALGORITHMS = OF_RSA | frozenset(OF_CURVES.values())
MOST_S = 253_402_300_799  # end of the year 9999
BLANK = "".join(map(chr, range(0x21)))  # what Java's String.trim strips
_SIGNATURES = jwt.PyJWS()


class TokenError(ValueError):
    """The token is invalid; the message does not contain it."""


class UnknownKey(TokenError):
    """Signed with an unknown key, which may have been published in the meantime."""


class KeySetError(ValueError):
    """Not a JWK set (RFC 7517) with a usable key."""


class Key(NamedTuple):
    name: str | None
    algorithms: frozenset[str]
    public: RSAPublicKey | EllipticCurvePublicKey


class Identity(NamedTuple):
    name: str
    ends_at_s: int


# -- keys -------------------------------------------------------------------------------------------------------------
def keys_of(text: bytes) -> tuple[Key, ...]:
    """The usable keys; others, or malformed ones, are skipped."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise KeySetError("it is no JSON") from None
    listed = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(listed, list):
        raise KeySetError('it has no list of "keys"')
    if len(listed) > MOST_KEYS:
        raise KeySetError(f"it has {len(listed)} keys, and {MOST_KEYS} are the most")
    keys = tuple(key for each in listed if (key := _key(each)) is not None)
    if not keys:
        raise KeySetError("it has no key of RSA with 2048 bits or more, P-256, P-384 or P-521")
    return keys


def _key(found: Any) -> Key | None:
    if not isinstance(found, dict) or found.get("use") not in (None, "sig"):
        return None
    try:
        public, algorithms = _public(found)
    except Exception:  # bad numbers may make cryptography raise anything
        return None
    name, algorithm = found.get("kid"), found.get("alg")
    if algorithm is not None:
        algorithms = frozenset(each for each in algorithms if each == algorithm)
    return Key(name, algorithms, public) if algorithms and (name is None or isinstance(name, str)) else None


def _public(found: dict[str, Any]) -> tuple[RSAPublicKey | EllipticCurvePublicKey, frozenset[str]]:
    own = {name: value for name, value in found.items() if name in ("kty", "n", "e", "crv", "x", "y")}
    if found["kty"] == "RSA":
        public = RSAAlgorithm.from_jwk(own)
        assert isinstance(public, RSAPublicKey)
        return public, OF_RSA if LEAST_RSA_BITS <= public.key_size <= MOST_RSA_BITS else frozenset()
    of_curve = ECAlgorithm.from_jwk(own)
    assert isinstance(of_curve, EllipticCurvePublicKey)
    return of_curve, frozenset({OF_CURVES[found["crv"]]})


# -- tokens -----------------------------------------------------------------------------------------------------------
def identity(token: str, keys: Sequence[Key], rules: TokenRules, now_s: float) -> Identity:
    return identity_of(_signed(token, keys), rules, now_s)


def _signed(token: str, keys: Sequence[Key]) -> Mapping[str, Any]:
    """The claims of a token signed with one of the keys."""
    if len([part for part in token.split(".") if part]) != 3 or token.count(".") != 2:
        raise TokenError("it is no signed token of three parts")
    try:
        header = jwt.get_unverified_header(token)
    except Exception:  # malformed bytes may raise anything
        raise TokenError("it cannot be read") from None
    algorithm, name = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise TokenError(
            f"its algorithm is {algorithm!r:.20}, and those that are taken are {', '.join(sorted(ALGORITHMS))}"
        )
    if "crit" in header:
        raise TokenError("its header has something critical in it")
    fitting = [key for key in keys if algorithm in key.algorithms and name in (None, key.name)]
    for key in fitting:
        try:
            text = _SIGNATURES.decode(token, key.public, [algorithm])
        except Exception:  # whatever is wrong with the signature
            continue
        return _claims(text)
    if name is None or not fitting:
        raise UnknownKey(f"no key is known for {algorithm} and kid {name!r:.60}")
    raise TokenError("its signature is wrong")


def _claims(text: bytes) -> Mapping[str, Any]:
    try:
        claims = json.loads(text)
    except (ValueError, RecursionError):
        claims = None
    if not isinstance(claims, dict):
        raise TokenError("what it says cannot be read")
    return claims


def identity_of(claims: Mapping[str, Any], rules: TokenRules, now_s: float) -> Identity:
    """The identity in verified claims; raises TokenError if they do not hold now."""
    ends_at_s, issued_at_s = _time(claims, "exp"), _time(claims, "iat")
    begins_at_s = _time(claims, "nbf") if "nbf" in claims else issued_at_s
    if now_s - rules.skew_s >= ends_at_s:
        raise TokenError(f"it has ended {now_s - ends_at_s:.0f} s ago")
    if "nbf" in claims and now_s + rules.skew_s < begins_at_s:
        raise TokenError(f"it begins in {begins_at_s - now_s:.0f} s")
    if ends_at_s < max(issued_at_s, begins_at_s):
        raise TokenError("it ends before it begins")
    if rules.issuer is not None and claims.get("iss") != rules.issuer:
        raise TokenError(f"its issuer is {claims.get('iss')!r:.100}")
    _check_audience(claims.get("aud"), rules.audiences)
    _check_scope(claims.get(rules.scope_claim))
    return Identity(_name(claims.get(rules.name_claim), rules.name_claim), ends_at_s)


def _time(claims: Mapping[str, Any], claim: str) -> int:
    value = claims.get(claim)
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value < 0:
        raise TokenError(f"its {claim} is missing, or no time")
    return int(min(value, MOST_S))


def _check_audience(found: Any, expected: frozenset[str]) -> None:
    if found is None and not expected:
        return
    named = [found] if isinstance(found, str) else found if isinstance(found, list) else []
    if not any(isinstance(each, str) and each in expected for each in named):
        raise TokenError(f"its audience is {found!r:.100}")


def _check_scope(found: Any) -> None:
    """Scopes have no effect, but a token with malformed ones is rejected."""
    named = [found] if isinstance(found, str) else found if isinstance(found, list) else []
    for each in named:
        if not isinstance(each, str) or not each.strip(BLANK):
            raise TokenError("its scope has no name")
    if len({each.strip(BLANK) for each in named}) != len(named):
        raise TokenError("its scope says something twice")


def _name(found: Any, claim: str) -> str:
    name = found.strip(BLANK) if isinstance(found, str) else ""
    if not name:
        raise TokenError(f"it has no {claim}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise TokenError(f"its {claim} is no text") from None
    return name
