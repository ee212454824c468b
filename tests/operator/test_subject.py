"""The operator and the brokers read the same name out of a certificate, and unusable Secrets are told apart."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.certificates import DAYS, Authority
from tests.operator.making import cluster

from ballast_broker.security import names
from ballast_local.certificates import make_certificate
from ballast_operator.apply.kubernetes import KubernetesApi
from ballast_operator.handlers import secured as secured_handler
from ballast_operator.handlers.secured import Secured
from ballast_operator.model.subject import SubjectError, subject_of
from ballast_operator.plan.kube import KubeFacts
from ballast_operator.resources import security
from ballast_operator.tls_secrets import SecretUnusableError, check_believed, check_certificates

pytestmark = pytest.mark.spec("OPR-40", "CLI-06")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        ("/CN=plain", "CN=plain"),
        ("/C=DE/O=Shop, Ltd/OU=a\\+b/CN=orders", r"CN=orders,OU=a\+b,O=Shop\, Ltd,C=DE"),
        ("/DC=example/DC=shop/UID=7/L=Köln/ST=NW/CN=größe \\#1", r"CN=größe \#1,ST=NW,L=Köln,UID=7,DC=shop,DC=example"),
        ("/", ""),
    ],
)
def test_it_is_the_name_that_brokers_take_it_for(authority: Authority, subject: str, expected: str) -> None:
    pem = authority.issue("one", subject=subject).read_text()
    assert subject_of(pem) == expected
    certificate = authority.folder / "one.crt"
    assert names.subject_of(ssl.PEM_cert_to_DER_cert(certificate.read_text())) == expected


def test_what_is_no_certificate_or_has_a_name_of_another_kind_is_refused(authority: Authority) -> None:
    with pytest.raises(SubjectError, match="no certificate in it"):
        subject_of("nothing")
    with pytest.raises(SubjectError, match="cannot be read"):
        subject_of("-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----")
    with pytest.raises(SubjectError, match=r"1\.2\.840\.113549\.1\.9\.1 is none of"):
        subject_of(authority.issue("mail", subject="/CN=a/emailAddress=a@example").read_text())


PODS = ",".join(f"DNS:demo-{number}.demo-brokers.default.svc" for number in range(3))


def files(authority: Authority, name: str, subject: str | None = None, days: int = DAYS) -> dict[str, str]:
    whole = authority.issue(name, subject=subject, names=PODS, days=days)
    found = {"tls.crt": whole.with_suffix(".crt"), "tls.key": whole.with_suffix(".key"), "ca.crt": authority.ca}
    return {key: path.read_text() for key, path in found.items()}


def test_a_key_of_another_certificate_and_an_authority_that_is_none_are_told(authority: Authority) -> None:
    found, other = files(authority, "found"), files(authority, "other")
    check_certificates("demo", found)
    with pytest.raises(SecretUnusableError, match=r"Secret demo: tls\.crt and tls\.key cannot be used together: key"):
        check_certificates("demo", found | {"tls.key": other["tls.key"]})
    with pytest.raises(SecretUnusableError, match=r"Secret demo: ca\.crt has no certificate"):
        check_certificates("demo", found | {"ca.crt": "-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----"})
    check_certificates("demo", {"ca.crt": found["ca.crt"]})
    with pytest.raises(SecretUnusableError, match=r"Secret demo: ca\.crt has no certificate"):
        check_certificates("demo", {"ca.crt": "none"})


def test_nodes_have_to_believe_each_other_both_ways(authority: Authority, tmp_path: Path) -> None:
    found = files(authority, "found")
    hosts = security.hosts(cluster(brokers=3), 0)
    check_believed("demo", found, hosts)
    with pytest.raises(SecretUnusableError, match=r"demo-3\..* would not be believed .*: Hostname mismatch"):
        check_believed("demo", found, security.hosts(cluster(brokers=3), 4))
    other = Authority(tmp_path, "other")
    with pytest.raises(SecretUnusableError, match="unable to get local issuer certificate"):
        check_believed("demo", found | {"ca.crt": other.ca.read_text()}, hosts)
    certificate, key = make_certificate()  # not for clients
    with pytest.raises(SecretUnusableError, match="unsuitable certificate purpose"):
        check_believed("demo", {"tls.crt": certificate, "tls.key": key, "ca.crt": certificate}, ["localhost"])


async def test_a_broker_more_needs_its_name_in_the_certificate_before_it_is_made(authority: Authority) -> None:
    secured = Secured(Secrets(inside=files(authority, "inside")))
    inside = {"internal": {"tls": {"secretName": "inside"}}}
    assert (await secured.look(cluster(brokers=3, security=inside), KubeFacts()))[1] is None
    _, said = await secured.look(cluster(brokers=4, security=inside), KubeFacts())
    assert said is not None
    assert (said.reason, said.stalled) == ("SecretUnusable", True)
    assert "Secret inside: demo-3.demo-brokers.default.svc would not be believed" in said.message


async def test_a_certificate_that_expires_meanwhile_is_no_longer_believed(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was looked at once: the layout went on, and each pod that it restarted was refused by all others."""
    steady, expired = [1000.0], list[bool]()
    over = files(authority, "inside", days=-1)
    asked: list[list[str]] = []

    def believed(name: str, found: Mapping[str, str], hosts: Iterable[str]) -> None:
        asked.append(list(hosts))
        check_believed(name, over if expired else found, asked[-1])

    monkeypatch.setattr(secured_handler, "monotonic", lambda: steady[0])
    monkeypatch.setattr(secured_handler, "check_believed", believed)
    secured = Secured(Secrets(inside=files(authority, "inside")))
    subject = cluster(brokers=3, security={"internal": {"tls": {"secretName": "inside"}}})
    assert (await secured.look(subject, KubeFacts()))[1] is None
    expired.append(True)
    assert (await secured.look(subject, KubeFacts()))[1] is None
    assert len(asked) == 1, "not in each cycle"
    steady[0] += 60.0
    for _ in range(2):
        _, said = await secured.look(subject, KubeFacts())
        assert said is not None
        assert said.reason == "SecretUnusable"
        assert "certificate has expired" in said.message
    assert [len(hosts) for hosts in asked] == [3, 1, 1], "it is the same certificate for all hosts"
    expired.clear()
    for _ in range(2):
        assert (await secured.look(subject, KubeFacts()))[1] is None
    assert [len(hosts) for hosts in asked] == [3, 1, 1, 1]


class Secrets(KubernetesApi):
    """An API server with these Secrets and nothing else."""

    def __init__(self, **held: dict[str, str]) -> None:
        self.held = held

    async def find(self, path: str) -> dict[str, Any] | None:
        import base64

        found = self.held.get(path.rpartition("/")[2])
        encoded = {key: base64.b64encode(text.encode()).decode() for key, text in (found or {}).items()}
        return None if found is None else {"data": encoded}


@pytest.mark.parametrize("subject", ["/", "/CN=a;b"])
async def test_rights_need_a_certificate_with_a_name_that_can_be_listed(authority: Authority, subject: str) -> None:
    rights = {"internal": {"tls": {"secretName": "inside"}}, "authorization": {"type": "Simple"}}
    api = Secrets(inside=files(authority, "inside", subject))
    _, said = await Secured(api).look(cluster(security=rights), KubeFacts())
    assert said is not None
    assert (said.reason, "the subject of tls.crt is" in said.message) == ("SecretUnusable", True)
    without = {"internal": rights["internal"]}
    assert await Secured(api).look(cluster(security=without), KubeFacts()) == (KubeFacts(), None)


async def test_a_secret_of_a_listener_is_looked_at_before_a_pod_waits_for_it(authority: Authority) -> None:
    whole = files(authority, "whole")
    plain = {"name": "PLAIN", "port": 9092}
    by_certificate = {"name": "C", "port": 9094, "tls": {"secretName": "clients"}, "authentication": {"type": "TLS"}}
    subject = cluster(listeners=[plain, by_certificate])
    for held, words in (
        ({}, "Secret clients does not exist"),
        ({"clients": {**whole, "ca.crt": " "}}, "Secret clients has no key ca.crt"),
        ({"clients": {key: whole[key] for key in ("tls.crt", "ca.crt")}}, "Secret clients has no key tls.key"),
    ):
        _, said = await Secured(Secrets(**held)).look(subject, KubeFacts())
        assert said is not None
        assert words in said.message
    assert (await Secured(Secrets(clients=whole)).look(subject, KubeFacts()))[1] is None
