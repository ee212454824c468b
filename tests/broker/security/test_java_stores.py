"""What Java's keytool has written (`stores/make.sh`) is read as Java reads it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from ballast_broker.security.java_stores import StoreError, keystore_pem, truststore_pem

STORES = Path(__file__).parent / "stores"
STORE_PASSWORD, KEY_PASSWORD = "of-the-store", "of-the-key"


def data(name: str) -> bytes:
    return (STORES / name).read_bytes()


def pem(*names: str) -> str:
    return "".join((STORES / name).read_text() for name in names)


CHAIN = pem("node.crt", "between.crt", "root.crt")


@pytest.mark.spec("CLI-06")
@pytest.mark.parametrize("name", ["from-openssl.p12", "node.p12", "old.p12"])
def test_a_keystore_of_pkcs12(name: str) -> None:
    assert keystore_pem(data(name), STORE_PASSWORD) == pem("node.key") + CHAIN
    assert keystore_pem(data(name), STORE_PASSWORD, STORE_PASSWORD) == pem("node.key") + CHAIN
    with pytest.raises(StoreError, match="in a PKCS12 the key has the store's"):
        keystore_pem(data(name), STORE_PASSWORD, KEY_PASSWORD)


@pytest.mark.spec("CLI-06")
@pytest.mark.parametrize("name", ["node.jks", "both.jks"])
def test_a_keystore_of_jks_whose_key_has_a_password_of_its_own(name: str) -> None:
    assert keystore_pem(data(name), STORE_PASSWORD, KEY_PASSWORD) == pem("node.key") + CHAIN
    for wrong in (None, STORE_PASSWORD, "of another"):
        with pytest.raises(StoreError, match=r"set ssl\.key\.password"):
            keystore_pem(data(name), STORE_PASSWORD, wrong)


@pytest.mark.spec("CLI-06")
@pytest.mark.parametrize("name", ["trust.jks", "trust.p12", "open.p12"])
def test_a_truststore(name: str) -> None:
    found = truststore_pem(data(name), STORE_PASSWORD)
    assert sorted(found.split("-----END CERTIFICATE-----\n")) == sorted(
        pem("root.crt", "other.crt").split("-----END CERTIFICATE-----\n")
    )
    with pytest.raises(StoreError, match="it has no private key"):
        keystore_pem(data(name), STORE_PASSWORD)


@pytest.mark.parametrize("name", ["trust.jks", "open.p12"])
def test_what_is_not_hidden_is_read_without_a_password(name: str) -> None:
    assert truststore_pem(data(name), None) == truststore_pem(data(name), STORE_PASSWORD)


def test_beside_a_key_of_jks_is_trusted_what_is_trusted_and_the_key_s_own_certificate() -> None:
    found = truststore_pem(data("both.jks"), STORE_PASSWORD)
    assert pem("root.crt") in found
    assert pem("other.crt") in found
    assert pem("node.crt") in found
    assert pem("between.crt") not in found, "who signed one's own key is not believed for that"


@pytest.mark.parametrize(
    ("name", "password", "says"),
    [
        ("node.jks", "of another", "its password is not the right one, or the file is spoilt"),
        ("node.p12", "of another", "or it is neither PKCS12 nor JKS"),
        ("node.p12", None, "its password is not the right one"),
        ("node.key", STORE_PASSWORD, "it is a PEM: set its type to PEM"),
        ("make.sh", STORE_PASSWORD, "neither PKCS12 nor JKS"),
        ("node.jceks", STORE_PASSWORD, "keytool -importkeystore -deststoretype PKCS12"),
        ("many.jks", STORE_PASSWORD, r"it has 2 private keys \(node, other\)"),
    ],
)
def test_what_is_wrong_is_said(name: str, password: str | None, says: str) -> None:
    with pytest.raises(StoreError, match=says) as refused:
        keystore_pem(data(name), password, password)
    assert "of another" not in str(refused.value)


def test_a_truststore_of_pkcs12_with_a_key_is_refused() -> None:
    with pytest.raises(StoreError, match="nothing but certificates"):
        truststore_pem(data("node.p12"), STORE_PASSWORD)


@pytest.mark.parametrize("name", ["node.jks", "node.p12", "trust.jks", "trust.p12", "open.p12"])
def test_what_is_cut_off_or_changed_is_refused(name: str) -> None:
    whole = data(name)
    for end in range(0, len(whole), 3):
        with pytest.raises(StoreError):
            truststore_pem(whole[:end], STORE_PASSWORD)
    proven = not name.startswith("open")
    for at in range(0, len(whole), 7):
        spoilt = bytearray(whole)
        spoilt[at] ^= 0x54
        with suppress(StoreError):
            found = truststore_pem(bytes(spoilt), STORE_PASSWORD)
            # What a PKCS12 does not authenticate, such as the name of an algorithm, may be changed.
            assert not proven or found == truststore_pem(whole, STORE_PASSWORD)


def test_a_cut_jks_is_refused_without_a_password_too() -> None:
    whole = data("trust.jks")
    for end in range(len(whole) - 20):
        with pytest.raises(StoreError):
            truststore_pem(whole[:end], None)
