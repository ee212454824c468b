"""Commands against a cluster that answers and does not allow what they ask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.sockets import forget_sockets
from tests.clients.running import RunningBroker

from ballast_cli.__main__ import main

pytestmark = pytest.mark.spec("CLI-06")
STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    folder = tmp_path_factory.mktemp("closed")
    running = RunningBroker(folder, authorizer_class_name=STANDARD, super_users="User:somebody").start()
    yield running
    assert running.stop() == 0
    forget_sockets()


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        (["status"], "This needs DESCRIBE on the cluster."),
        (["reassign", "generate"], "This needs DESCRIBE and ALTER on the cluster"),
        (["reassign", "execute", "--json", "PLAN"], "This needs DESCRIBE and ALTER on the cluster"),
        (["reassign", "verify", "--wait", "--json", "PLAN"], "This needs DESCRIBE and ALTER on the cluster"),
        (["reassign", "cancel", "--json", "PLAN"], "This needs DESCRIBE and ALTER on the cluster"),
    ],
)
def test_a_command_says_that_it_is_not_allowed_and_what_it_takes(
    broker: RunningBroker, words: list[str], needed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text('{"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1]}]}')
    typed = [str(plan) if word == "PLAN" else word for word in words]
    assert main([*typed, "--bootstrap", broker.bootstrap]) != 0
    said = capsys.readouterr().err
    assert f"not authorized by {broker.bootstrap}: CLUSTER_AUTHORIZATION_FAILED" in said
    assert needed in said
    assert "does not answer" not in said
