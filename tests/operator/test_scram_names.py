"""A cluster that somebody else runs, whose user for the operator has a name that SCRAM has to write in another way."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from tests.clients.secured import PASSWORD, Secured
from tests.operator.world import World

from ballast_operator.apply.kubernetes import path_of

pytestmark = pytest.mark.spec("OPR-40")
MECHANISMS = {"SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256, "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512}
NAMES = {"both": "a,b=c", "written": "n=2C"}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    running = Secured(tmp_path_factory.mktemp("secured")).start()
    admin = AdminClient({"bootstrap.servers": running.broker.bootstrap})
    for name in NAMES.values():
        for mechanism in MECHANISMS.values():
            wanted = UserScramCredentialUpsertion(name, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
            admin.alter_user_scram_credentials([wanted])[name].result(20)
    yield running
    assert running.broker.stop() == 0
    assert "Traceback" not in running.broker.log_text()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("world")) as found:
        yield found


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("kind", NAMES)
def test_the_operator_comes_in(secured: Secured, world: World, kind: str, mechanism: str) -> None:
    name = f"{kind}-{mechanism[-3:]}"
    login = {"username": NAMES[kind], "password": PASSWORD}
    data = {key: base64.b64encode(value.encode()).decode() for key, value in login.items()}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}
    world.api("apply", path_of("v1", "secrets", "default", name), secret)
    sasl = {"mechanism": mechanism, "secretName": name}
    spec = {"external": {"bootstrapServers": secured.broker.listeners["OPEN"], "sasl": sasl}}
    world.apply("KafkaCluster", name, spec)
    world.until_ready("KafkaCluster", name)
