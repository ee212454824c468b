"""Our own commands come in with tokens, by the files that Apache Kafka's tools take."""

from __future__ import annotations

import asyncio
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from tests.certificates import Authority
from tests.clients import test_librdkafka as rd
from tests.clients.commands import all_come_in
from tests.clients.oauth import MODULE, USER, WithTokens
from tests.identity_provider import CLIENTS, Provider, new_key

from ballast_cli import CommandError, command_config
from ballast_cli.__main__ import main
from ballast_operator.kafka_client import ConnectionSettings, KafkaConnection, KafkaUnavailableError
from ballast_operator.observe import observe_brokers
from ballast_operator.tokens import ClientCredentials
from ballast_rebalance.job import JobOptions, unanswered
from ballast_rebalance.proposal import ProposalOptions

pytestmark = pytest.mark.spec("CLI-06")


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("issuer"))


@pytest.fixture(scope="module")
def provider(certified: Authority) -> Iterator[Provider]:
    """At https, by a certificate that no system believes."""
    with Provider(certified.issue("issuer")) as running:
        yield running


@pytest.fixture(scope="module")
def there(provider: Provider, certified: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WithTokens]:
    running = WithTokens(tmp_path_factory.mktemp("tokens"), provider)
    options = f'ssl.truststore.type="PEM" ssl.truststore.location="{certified.ca}"'
    running.broker._properties |= {"super.users": f"User:ANONYMOUS;User:{USER}"} | {
        f"listener.name.{each}.oauthbearer.sasl.jaas.config": f"{MODULE} required {options};"
        for each in ("open", "safe")
    }
    running.broker.start()
    yield running
    assert running.broker.stop() == 0


def written(there: WithTokens, folder: Path, listener: str, **more: str) -> Path:
    """Names are written with `_` for `.`."""
    lines = {
        "security.protocol": "SASL_SSL" if listener == "SAFE" else "SASL_PLAINTEXT",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(there.authority.ca),
        "sasl.mechanism": "OAUTHBEARER",
    } | {name.replace("_", "."): value for name, value in more.items()}
    file = folder / "client.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    return file


def believing(certified: Authority, more: str = "") -> str:
    return f'{MODULE} required {more} ssl.truststore.type="PEM" ssl.truststore.location="{certified.ca}";'


def ways(there: WithTokens, certified: Authority, folder: Path) -> dict[str, dict[str, str]]:
    url = there.provider.token_url
    token = folder / "a token"
    token.write_text(there.provider.token(USER) + "\n")
    return {
        "properties": {
            "sasl_jaas_config": believing(certified),
            "sasl_oauthbearer_token_endpoint_url": url,
            "sasl_oauthbearer_client_credentials_client_id": USER,
            "sasl_oauthbearer_client_credentials_client_secret": CLIENTS[USER],
            "sasl_oauthbearer_scope": "kafka",
        },
        "login module": {
            "sasl_jaas_config": believing(certified, f'clientId="{USER}" clientSecret="{CLIENTS[USER]}" scope="kafka"'),
            "sasl_oauthbearer_token_endpoint_url": url,
            "sasl_login_callback_handler_class": (
                "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
            ),
        },
        "file": {
            "sasl_jaas_config": f"{MODULE} required;",
            "sasl_oauthbearer_token_endpoint_url": token.as_uri(),
        },
    }


@pytest.mark.parametrize("listener", ["OPEN", "SAFE"])
@pytest.mark.parametrize("way", ["properties", "login module", "file"])
def test_every_command_comes_in(
    there: WithTokens, certified: Authority, tmp_path: Path, topic: str, listener: str, way: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    rd.create(there.broker, topic, 2)
    file = written(there, tmp_path, listener, **ways(there, certified, tmp_path)[way])
    all_come_in(there.broker.listeners[listener], file, topic, capsys)


def test_a_command_that_takes_longer_than_its_token_gets_another(
    there: WithTokens, certified: Authority, tmp_path: Path
) -> None:
    """Of the session, which is three seconds at this listener, the library sees to the end itself; on a busy machine it
    may be late, and connects anew."""
    from kafka.admin import KafkaAdminClient
    from kafka.errors import KafkaConnectionError

    file = written(there, tmp_path, "SAFE", **ways(there, certified, tmp_path)["properties"])
    bootstrap, there.provider.lifetime_s = there.broker.listeners["SAFE"], 4
    try:
        options = command_config.library_options(Namespace(bootstrap=bootstrap, command_config=file), "test")
        before = len(there.provider.asked)
        with closing(KafkaAdminClient(bootstrap_servers=bootstrap, **options)) as client:
            begun = answered = time.monotonic()
            while time.monotonic() < begun + 9:
                with suppress(KafkaConnectionError):
                    assert client.describe_cluster()["brokers"]
                    answered = time.monotonic()
                time.sleep(0.2)
        assert answered > begun + 6, "after the end of two sessions"
        assert len(there.provider.asked) - before >= 2, "one after 80 percent of four seconds each"
    finally:
        there.provider.lifetime_s = 600


async def told(settings: ConnectionSettings) -> bool:
    """Whether a client that comes anew is let in."""
    kafka = KafkaConnection(settings)
    try:
        return bool((await observe_brokers(kafka)).brokers)
    except KafkaUnavailableError:
        return False
    finally:
        await kafka.close()


@pytest.mark.spec("OPR-40")
@pytest.mark.parametrize("whose", ["a command's", "the operator's"])
async def test_a_token_whose_key_is_no_longer_published_is_replaced_at_once(
    there: WithTokens, certified: Authority, tmp_path: Path, whose: str
) -> None:
    """Though little of its time has gone. For new keys a broker asks no oftener than every five seconds."""
    provider, bootstrap = there.provider, there.broker.listeners["OPEN"]

    def operators() -> ConnectionSettings:
        own = ClientCredentials(provider.token_url, USER, CLIENTS[USER], "kafka", certified.ca.read_text())
        return ConnectionSettings(bootstrap, sasl_mechanism="OAUTHBEARER", tokens=own)

    settings = operators()
    if whose == "a command's":
        file = written(there, tmp_path, "OPEN", **ways(there, certified, tmp_path)["properties"])
        settings = await asyncio.to_thread(command_config.settings_of, bootstrap, file)
    assert settings.tokens is not None
    while not await told(operators()):  # the keys may be back since a moment ago only, when the other case had ended
        pass
    assert await told(settings)
    shown = await asyncio.to_thread(settings.tokens.token)
    before, provider.keys = provider.keys, {f"for {whose}": new_key()}
    try:
        while not await told(operators()):
            pass
        assert await told(settings)
        assert await asyncio.to_thread(settings.tokens.token) != shown
    finally:
        provider.keys |= before


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"sasl_oauthbearer_client_credentials_client_secret": "hush"}, "answers 401 Unauthorized"),
        ({"sasl_jaas_config": f"{MODULE} required;"}, "certificate verify failed"),
        ({"sasl_oauthbearer_token_endpoint_url": "file:///nowhere/token"}, "/nowhere/token cannot be read: No such"),
        ({"sasl_oauthbearer_token_endpoint_url": "http://127.0.0.1:9/token"}, "127.0.0.1:9/token: Connection refused"),
    ],
)
def test_why_there_is_no_token_is_told(
    there: WithTokens, certified: Authority, tmp_path: Path, changes: dict[str, str], says: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    given = ways(there, certified, tmp_path)["properties"] | changes
    file = written(there, tmp_path, "OPEN", **given)
    for command in (["status"], ["reassign", "generate", "--json", str(tmp_path / "plan.json")], ["rebalance"]):
        assert main([*command, "--bootstrap", there.broker.listeners["OPEN"], "--command-config", str(file)]) == 2
        # The provider, which is in this process, tells there of a handshake that failed.
        said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("ballast ")]
        assert len(said) == 1
        assert f"--command-config {file}: there is no token to show: " in said[0]
        assert says in said[0]
        assert "hush" not in said[0]


def test_a_token_that_a_broker_does_not_believe_is_told_to_be_so(
    there: WithTokens, certified: Authority, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(there, tmp_path, "OPEN", **ways(there, certified, tmp_path)["file"])
    token = there.provider.token(USER, aud="somebody else")
    (tmp_path / "a token").write_text(token)
    bootstrap = there.broker.listeners["OPEN"]
    said = []
    for command in (["status"], ["reassign", "generate", "--json", str(tmp_path / "plan.json")]):
        assert main([*command, "--bootstrap", bootstrap, "--command-config", str(file)]) == 2
        said.append(capsys.readouterr().err)
    options = command_config.library_options(Namespace(bootstrap=bootstrap, command_config=file), "test")
    look = unanswered(JobOptions(ProposalOptions("c"), bootstrap=bootstrap, client_options=options))
    assert look is not None
    for told in (*said, look.message):
        assert "did not authenticate" in told
        assert token not in told


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"sasl_oauthbearer_token_endpoint_url": ""}, "sasl.oauthbearer.token.endpoint.url is missing"),
        ({"sasl_oauthbearer_client_credentials_client_id": ""}, "client.credentials.client.id is missing"),
        ({"sasl_login_callback_handler_class": "org.example.Ours"}, "sasl.login.callback.handler.class"),
        ({"sasl_jaas_config": "org.example.Module required;"}, "the login module of OAUTHBEARER is"),
        ({"sasl_jaas_config": f'{MODULE} required unsecuredLoginStringClaim_sub="x";'}, "makes unsigned tokens"),
        ({"sasl_login_refresh_window_factor": "7"}, "sasl.login.refresh.window.factor"),
    ],
)
def test_what_is_wrong_with_the_file_is_told(
    there: WithTokens, certified: Authority, tmp_path: Path, changes: dict[str, str], says: str
) -> None:
    given = ways(there, certified, tmp_path)["properties"] | changes
    with pytest.raises(CommandError) as refused:
        command_config.settings_of("a:1", written(there, tmp_path, "OPEN", **given))
    assert says in str(refused.value)
    assert CLIENTS[USER] not in str(refused.value)
