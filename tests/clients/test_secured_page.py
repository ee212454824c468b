"""docs/security.md as it stands there: its broker, its client, its commands."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from e2e.processes import free_ports
from tests.certificates import Authority
from tests.clients.running import RunningBroker
from tests.clients.test_java_tools import run
from tests.docs.commands import block, to_type

from ballast_broker.config.properties_file import parse_properties
from ballast_cli.__main__ import main

pytestmark = pytest.mark.spec("CLI-06")
PAGE, HERE = "docs/security.md", "tests/clients/test_secured_page.py::"


class Page:
    def __init__(self, folder: Path) -> None:
        authority = Authority(folder / "ca")
        safe, controller = free_ports(2)
        here = {
            "/etc/ballast/node.pem": str(authority.issue("node")),
            "/etc/ballast/ca.crt": str(authority.ca),
            "localhost:9093": f"127.0.0.1:{safe}",
            "localhost:9094": f"127.0.0.1:{controller}",
            "/tmp/safe": str(folder),
        }

        def moved(text: str) -> str:
            for there, ours in here.items():
                text = text.replace(there, ours)
            return text

        self.broker = RunningBroker(folder / "broker")
        self.broker._properties = dict(parse_properties(moved(block(PAGE, "node.id=1"))))
        self.config = folder / "admin.properties"
        self.config.write_text(moved(block(PAGE, "security.protocol=SASL_SSL")))
        self.authority = authority

    def typed(self, test: str) -> list[str]:
        (command,) = to_type(HERE + test)
        typed = command.replace("HOST:PORT", self.broker.listeners["SAFE"])
        return shlex.split(typed.replace("admin.properties", str(self.config)))


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    made = Page(tmp_path)
    made.broker.start()
    yield made
    assert made.broker.stop() == 0
    assert "has no effect" not in made.broker.log_text()


def test_the_page_typed(page: Page, capsys: pytest.CaptureFixture[str]) -> None:
    program, *words = page.typed("test_the_page_typed")
    assert program == "./ballast"
    assert main(words) == 0
    assert "1 of 1 brokers online" in capsys.readouterr().out


@pytest.mark.java
@pytest.mark.timeout(120)
def test_the_page_typed_at_kafkas_tools(page: Page) -> None:
    program, *words = page.typed("test_the_page_typed_at_kafkas_tools")
    assert program == "kafka-configs.sh"
    assert "Completed updating config for user alice" in run("configs", *words)
    settings = {
        "bootstrap.servers": page.broker.listeners["SAFE"],
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(page.authority.ca),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": "alice-secret",
    }
    assert AdminClient({**settings}).list_topics(timeout=20).brokers
