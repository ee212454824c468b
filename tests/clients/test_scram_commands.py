"""Our own commands come in by delegation tokens, and by names that SCRAM has to write in another way."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from tests.clients import test_librdkafka as rd
from tests.clients.commands import all_come_in
from tests.clients.secured import PASSWORD, SCRAM, USER, Secured, quoted
from tests.contract.logins import log_in
from tests.contract.wire import WireClient

from ballast_cli.__main__ import main
from ballast_wire.messages import message

NAMES = ["a,b=c", "n=2C", "jürgen"]
WAYS = [("OPEN", "SCRAM-SHA-256"), ("SAFE", "SCRAM-SHA-512")]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    running = Secured(tmp_path_factory.mktemp("secured"))
    running.broker._properties |= {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": ";".join(f"User:{each}" for each in ("ANONYMOUS", USER, *NAMES)),
        "delegation.token.secret.key": "nobody-is-to-read-this",
    }
    running.start()
    yield running
    assert running.broker.stop() == 0
    assert "Traceback" not in running.broker.log_text()


@pytest.fixture
def token(secured: Secured) -> tuple[str, str]:
    """One of alice's, who may do all: its id and HMAC."""
    host, _, port = secured.broker.listeners["OPEN"].rpartition(":")
    with closing(WireClient(host, int(port))) as client:
        log_in(client, USER, PASSWORD)
        made = client.call(message("CreateDelegationTokenRequest")(renewers=[], max_lifetime_ms=-1), 3)
    assert made.error_code == 0
    return made.token_id, base64.b64encode(made.hmac).decode()


def written(secured: Secured, folder: Path, way: tuple[str, str], login: str) -> Path:
    file = secured.java(folder, *way)
    file.write_text(f"{file.read_text()}sasl.jaas.config={SCRAM} required {login};\n")
    return file


@pytest.mark.spec("CLI-06", "CLI-13")
@pytest.mark.parametrize("way", WAYS)
def test_every_command_comes_in_by_a_token(
    secured: Secured, token: tuple[str, str], topic: str, tmp_path: Path, way: tuple[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    rd.create(secured.broker, topic, 2)
    user, hmac = token
    file = written(secured, tmp_path, way, f'username="{user}" password="{hmac}" tokenauth="true"')
    all_come_in(secured.broker.listeners[way[0]], file, topic, capsys)


@pytest.mark.spec("CLI-13")
def test_a_token_that_there_is_not_lets_no_command_in(
    secured: Secured, token: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    user, hmac = token
    at = ["status", "--bootstrap", secured.broker.listeners["OPEN"], "--command-config"]
    for login in (
        f'username="{user}" password="{hmac}"',
        f'username="{user}" password="{hmac}" tokenauth="false"',
        f'username="{user[:-1]}" password="{hmac}" tokenauth="true"',
        f'username="{USER}" password={quoted(PASSWORD)} tokenauth="true"',
    ):
        assert main([*at, str(written(secured, tmp_path, WAYS[0], login))]) != 0, login
        said = capsys.readouterr().err
        assert "did not authenticate" in said, said
        assert hmac not in said


@pytest.mark.spec("CLI-06")
@pytest.mark.parametrize("user", NAMES)
def test_names_that_scram_writes_in_another_way(
    secured: Secured, tmp_path: Path, user: str, capsys: pytest.CaptureFixture[str]
) -> None:
    admin = AdminClient({"bootstrap.servers": secured.broker.bootstrap})
    known = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    upsertion = UserScramCredentialUpsertion(user, known, PASSWORD.encode())
    admin.alter_user_scram_credentials([upsertion])[user].result(20)
    file = written(secured, tmp_path, WAYS[1], f"username={quoted(user)} password={quoted(PASSWORD)}")
    assert main(["status", "--bootstrap", secured.broker.listeners["SAFE"], "--command-config", str(file)]) == 0
    assert "volume-0" in capsys.readouterr().out
