"""Principal names from certificates: in Java's form (taken from Java), and after mapping rules."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from tests.certificates import Authority, openssl

from ballast_broker.security.names import NoName, RuleError, name_by_rules, subject_of

# Subject as openssl takes it → what Java 17's X500Principal.getName() says.
SUBJECTS = {
    "/C=DE/ST=Berlin/O=Shop, Inc./OU=a/CN=orders": r"CN=orders,OU=a,O=Shop\, Inc.,ST=Berlin,C=DE",
    "/CN= lead and trail ": r"CN=\ lead and trail\ ",
    "/CN=#hash/emailAddress=a@b.c": r"1.2.840.113549.1.9.1=#16056140622e63,CN=\#hash",
    "/DC=org/DC=example/UID=jo/CN=jörg 日本": "CN=jörg 日本,UID=jo,DC=example,DC=org",
    r"/CN=quote\"back\\slash;<x>/serialNumber=12/L=X": r"L=X,2.5.4.5=#13023132,CN=quote\"back\\slash\;\<x\>",
    "/OU=x+CN=multi/O=y": "O=y,OU=x+CN=multi",
    "/CN=a/title=Dr": "2.5.4.12=#0c024472,CN=a",
}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.mark.spec("CLI-06")
@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_subject_is_written_as_java_writes_it(authority: Authority, tmp_path: Path, subject: str) -> None:
    file = tmp_path / "one.crt"
    key = authority.folder / "tests-ca.key"
    openssl("req", "-x509", "-new", "-utf8", "-multivalue-rdn", "-key", key, "-subj", subject, "-out", file)
    assert subject_of(ssl.PEM_cert_to_DER_cert(file.read_text())) == SUBJECTS[subject]


def test_what_is_no_certificate_has_no_name(authority: Authority) -> None:
    whole = ssl.PEM_cert_to_DER_cert(authority.ca.read_text())
    for data in (b"", b"\x30", b"\x30\x02\x05\x00", whole[:100], b"\xff" * 300):
        with pytest.raises(NoName):
            subject_of(data)


@pytest.mark.spec("CLI-06")
@pytest.mark.parametrize(
    ("rules", "subject", "name"),
    [
        ("DEFAULT", "CN=a,O=b", "CN=a,O=b"),
        ("", "CN=a,O=b", "CN=a,O=b"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", "CN=kafka-1,OU=ServiceUsers,O=x", "kafka-1"),
        ("RULE:^CN=(.*?),OU=(.*?),O=.*$/$1@$2/L,DEFAULT", "CN=Ad-Min,OU=Ops,O=x", "ad-min@ops"),
        ("RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U", "O=x,CN=me", "ME"),
        ("RULE:^nothing$/x/, RULE:^CN=(.*)$/$1/, DEFAULT", "CN=a", "a"),
        ("RULE:^CN=(.*)$/$1/,DEFAULT", "O=a", "O=a"),
        ("RULE:^CN=(\\w+)\\/x$/\\$1$2/", "CN=a/x", "$1$2"),
    ],
)
def test_rules_make_the_name(rules: str, subject: str, name: str) -> None:
    assert name_by_rules(rules)(subject) == name


def test_where_no_rule_applies_there_is_no_name() -> None:
    with pytest.raises(NoName, match="no rule"):
        name_by_rules("RULE:^CN=(.*)$/$1/")("O=a")


@pytest.mark.parametrize("rules", ["RULE:x", "RULE:a/b", "RULE:(/b/", "default", "RULE:a/b/X", "DEFAULT DEFAULT"])
def test_a_rule_that_is_none_is_refused(rules: str) -> None:
    with pytest.raises(RuleError):
        name_by_rules(rules)
