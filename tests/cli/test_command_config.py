"""`--command-config FILE`: Kafka's client properties, and what is wrong with them, told without what is secret."""

from __future__ import annotations

import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
from tests.certificates import Authority

from ballast_cli import CommandError
from ballast_cli.__main__ import main
from ballast_cli.command_config import library_options, settings_of

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"

STORES = Path(__file__).parents[1] / "broker" / "security" / "stores"
KERBEROS = "sasl.jaas.config=com.sun.security.auth.module.Krb5LoginModule required"
BY_KERBEROS, SERVICE = "security.protocol=SASL_SSL", "sasl.kerberos.service.name=kafka"
BY_PLAIN = ["security.protocol=SASL_SSL", "sasl.mechanism=PLAIN"]


def written(folder: Path, *lines: str) -> Path:
    file = folder / "client.properties"
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.mark.spec("CLI-06")
def test_a_password_and_what_is_trusted(tmp_path: Path) -> None:
    ca = tmp_path / "ca.crt"
    ca.write_text("whom we believe")
    found = settings_of(
        "a:1",
        written(
            tmp_path,
            "# as for Kafka's own tools",
            "security.protocol=SASL_SSL",
            "sasl.mechanism=SCRAM-SHA-512",
            f"sasl.jaas.config={SCRAM} required \\",
            '  username="ann" password="a\\\\"b;";',
            "ssl.truststore.type=PEM",
            f"ssl.truststore.location={ca}",
            "ssl.endpoint.identification.algorithm=",
        ),
    )
    assert (found.tls, found.verify_hostname, found.ca_pem) == (True, False, "whom we believe")
    assert (found.sasl_mechanism, found.username, found.password) == ("SCRAM-SHA-512", "ann", 'a"b;')
    assert 'a"b' not in repr(found)


@pytest.mark.spec("CLI-06")
def test_stores_of_java_s(tmp_path: Path) -> None:
    lines = (
        "security.protocol=SSL",
        f"ssl.keystore.location={STORES}/node.jks",
        "ssl.keystore.password=of-the-store",
        "ssl.key.password=of-the-key",
        "ssl.truststore.type=PKCS12",
        f"ssl.truststore.location={STORES}/trust.p12",
        "ssl.truststore.password=of-the-store",
    )
    options = library_options(Namespace(bootstrap="a:1", command_config=written(tmp_path, *lines)), "test")
    names = [dict(part[0] for part in each["subject"])["commonName"] for each in options["ssl_context"].get_ca_certs()]
    assert names == ["root"], "that of no authority is trusted, too, but not listed"


@pytest.mark.spec("CLI-06")
def test_a_certificate_whose_key_has_a_password(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = authority.issue("ann", password="hush")
    lines = (
        "security.protocol=SSL",
        "ssl.keystore.type=PEM",
        f"ssl.keystore.location={own}",
        "ssl.truststore.type=PEM",
        f"ssl.truststore.location={authority.ca}",
    )
    right = Namespace(bootstrap="a:1", command_config=written(tmp_path, *lines, "ssl.key.password=hush"))
    options = library_options(right, "test")
    of_tls = ["security_protocol", "ssl_check_hostname", "ssl_context"]
    assert sorted(options) == ["bootstrap_timeout_ms", "client_id", *of_tls]
    assert options["client_id"] == "test"
    wrong = Namespace(bootstrap="a:1", command_config=written(tmp_path, *lines))
    with pytest.raises(CommandError, match="what it names cannot be used"):
        library_options(wrong, "test")


def test_what_has_no_effect_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings_of("a:1", written(tmp_path, "security.protocol=PLAINTEXT", "request.timeout.ms=5"))
    assert capsys.readouterr().err == "--command-config: request.timeout.ms has no effect here\n"


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["security.protocol=TLS"], "security.protocol is TLS: there are PLAINTEXT, SSL"),
        (["security.protocol=SSL", "ssl.truststore.location=/x.jks"], "ssl.truststore.location /x.jks: No such file"),
        (["security.protocol=SSL", "ssl.keystore.type=BKS", "ssl.keystore.location=/x"], "type is BKS: there are PEM"),
        (
            ["security.protocol=SSL", f"ssl.truststore.location={STORES}/trust.p12", "ssl.truststore.password=hush"],
            "trust.p12: its password is not the right one",
        ),
        (
            ["security.protocol=SSL", f"ssl.keystore.location={STORES}/trust.jks"],
            "trust.jks: it has no private key",
        ),
        (
            ["security.protocol=SSL", "ssl.truststore.type=PEM", "ssl.truststore.location=/nowhere"],
            "ssl.truststore.location /nowhere: No such file",
        ),
        (["security.protocol=SSL", "ssl.keystore.certificate.chain=x"], "given without ssl.keystore.key"),
        (["security.protocol=SSL", "ssl.endpoint.identification.algorithm=no"], "it is https, or nothing"),
        (["security.protocol=SASL_SSL"], "sasl.jaas.config: JAAS config property does not contain any login modules"),
        (["security.protocol=SASL_SSL", "sasl.mechanism=NTLM"], "sasl.mechanism is NTLM: there are PLAIN"),
        ([BY_KERBEROS, f"{KERBEROS} useKeyTab=true;"], "sasl.kerberos.service.name is missing"),
        ([BY_KERBEROS, SERVICE, f"{KERBEROS};"], "needs useKeyTab=true with keyTab and principal, or useTicketCache"),
        ([BY_KERBEROS, SERVICE, f"{KERBEROS} useKeyTab=true keyTab=x;"], "needs keyTab and principal with useKeyTab"),
        ([BY_KERBEROS, SERVICE, f"{KERBEROS} useKeyTab=true keyTab=x principal=a;"], "there is no keytab x"),
        ([BY_KERBEROS, SERVICE, f"{KERBEROS} debug=true;"], "option debug is not known here"),
        (BY_PLAIN, "does not contain any login modules"),
        (
            [
                "security.protocol=SASL_SSL",
                "sasl.mechanism=PLAIN",
                f'sasl.jaas.config={PLAIN} required username="hush";',
            ],
            "needs username and password",
        ),
        (
            [
                "security.protocol=SASL_SSL",
                "sasl.mechanism=PLAIN",
                f'sasl.jaas.config={SCRAM} required username="hush";',
            ],
            "the login module of PLAIN is",
        ),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, lines: list[str], says: str) -> None:
    with pytest.raises(CommandError) as refused:
        settings_of("a:1", written(tmp_path, *lines))
    assert says in str(refused.value)
    assert "hush" not in str(refused.value)


def test_a_file_that_is_not_there_and_one_without_a_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CommandError, match="No such file"):
        settings_of("a:1", tmp_path / "nowhere")
    assert main(["status", "--command-config", str(written(tmp_path, ""))]) == 2
    assert "--command-config needs --bootstrap HOST:PORT" in capsys.readouterr().err


@pytest.mark.spec("CLI-06")
def test_the_letters_of_a_file_are_those_that_java_and_editors_write(tmp_path: Path) -> None:
    """Java takes properties for Latin-1, editors write UTF-8."""
    text = "# für Züge\nsecurity.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n"
    text += f'sasl.jaas.config={PLAIN} required username="zoë" password="hush";\n'
    file = tmp_path / "client.properties"
    for encoding in ("utf-8", "latin-1"):
        file.write_bytes(text.encode(encoding))
        assert settings_of("a:1", file).username == "zoë"


def test_the_image_of_the_spark_job_has_nothing_that_reads_it(tmp_path: Path) -> None:
    """It has the command line, but no brokers."""
    parts = [str(Path(__file__).parents[2] / part) for part in ("operator", "spark")]
    words = ["reassign", "generate", "--bootstrap", "127.0.0.1:1", "--command-config", str(written(tmp_path))]
    told = subprocess.run(
        [sys.executable, "-P", "-m", "ballast_cli", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(parts)},
        capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip
    said = "--command-config is not in the image of the Spark job: use ./ballast in a checkout"
    assert (told.returncode, said in told.stderr, "Traceback" in told.stderr) == (2, True, False), told.stderr
