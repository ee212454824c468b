"""`./ballast reassign` against a broker: what is refused and what fails on the way is told, nothing else is claimed."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka.errors import NodeNotReadyError
from tests.moves.brokers import Brokers

from ballast_cli import CommandError, reassign
from ballast_cli.__main__ import main
from ballast_cli.reassignment import THROTTLED_REPLICAS, Cluster, Key, Target, write_plan

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with Brokers(tmp_path_factory.mktemp("brokers"), 1, [0]) as found:
        found.create("orders", [[0]])
        yield found


@pytest.fixture
def plan(brokers: Brokers, tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(write_plan({Key("orders", 0): Target((0,), (brokers.other_directory(0, "orders", 0),))}))
    return path


@pytest.mark.spec("DIR-10")
def test_a_setting_that_is_refused_is_told(brokers: Brokers) -> None:
    with reassign._connected(brokers.bootstrap) as cluster:
        throttled = {THROTTLED_REPLICAS[0]: "0:0"}
        refused = cluster.set_configs("topic", {"absent": throttled, "orders": throttled})
        assert list(refused) == ["topic absent"]
        assert "UnknownTopicOrPartition" in refused["topic absent"]
        assert cluster.set_configs("topic", {"orders": {THROTTLED_REPLICAS[0]: None}}) == {}


@pytest.mark.spec("DIR-10")
def test_nothing_is_moved_without_the_throttle_and_none_is_said_to_be_removed_that_stays(
    brokers: Brokers, plan: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> dict[str, str]:
        return {"broker 0": "ClusterAuthorizationFailedError"}

    before = brokers.directory_of(0, "orders", 0)
    words = ["--bootstrap", brokers.bootstrap, "--json", str(plan)]
    with monkeypatch.context() as patched:
        patched.setattr(Cluster, "set_configs", refuse)
        assert main(["reassign", "execute", *words, "--replica-alter-log-dirs-throttle", "1000000"]) == 1
        shown = capsys.readouterr()
        assert "broker 0: ClusterAuthorizationFailedError" in shown.err
        assert "Successfully started" not in shown.out
        assert (brokers.directory_of(0, "orders", 0), brokers.futures()) == (before, [])
        assert main(["reassign", "verify", *words]) == 1
        shown = capsys.readouterr()
        assert "throttle that stays: broker 0: ClusterAuthorizationFailedError" in shown.err
        assert "Throttles are removed" not in shown.out
    assert main(["reassign", "execute", *words, "--wait"]) == 0
    assert "Throttles are removed" in capsys.readouterr().out


def test_a_broker_that_goes_away_is_a_sentence_and_no_traceback(brokers: Brokers) -> None:
    with pytest.raises(CommandError, match="does not answer any more"), reassign._connected(brokers.bootstrap):
        raise NodeNotReadyError("broker 0 is gone")


def test_who_stops_following_learns_that_the_moves_go_on(
    brokers: Brokers, plan: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(reassign, "progress", interrupt)
    args = Namespace(bootstrap=brokers.bootstrap, json=str(plan), preserve_throttles=False, wait=True, action="verify")
    with pytest.raises(KeyboardInterrupt):
        reassign.run(args)
    told = capsys.readouterr().err
    assert "go on" in told
    assert "reassign verify" in told
