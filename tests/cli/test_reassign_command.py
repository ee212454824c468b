"""`./ballast reassign` against a broker: what is refused and what fails on the way is told, nothing else is claimed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from kafka.errors import KafkaConnectionError, NodeNotReadyError
from tests.moves.brokers import Brokers, eventually

from ballast_cli import CommandError, reassign
from ballast_cli.__main__ import load, main
from ballast_cli.reassignment import (
    INTER_BROKER_RATES,
    THROTTLED_REPLICAS,
    Cluster,
    Key,
    Plan,
    Snapshot,
    State,
    Target,
    progress,
    read_plan,
    write_plan,
)
from ballast_operator.kafka_client import Admin

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with Brokers(tmp_path_factory.mktemp("brokers"), 2, [0]) as found:
        found.create("orders", [[0]])
        yield found


@pytest.fixture
def plan(brokers: Brokers, tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(write_plan({Key("orders", 0): Target((0,), (brokers.other_directory(0, "orders", 0),))}))
    return path


@pytest.mark.spec("DIR-10", "DIR-15")
@pytest.mark.parametrize("path", ["/data/nowhere", "of broker 0"])
def test_a_plan_for_a_directory_that_is_not_there_begins_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], path: str
) -> None:
    """Else its replica would be made, and in another directory."""
    with Brokers(tmp_path, 2, [0, 1]) as two:
        two.create("orders", [[0]])
        wanted = path if path.startswith("/") else str(two[0].volumes[0])
        (tmp_path / "plan.json").write_text(write_plan({Key("orders", 0): Target((1,), (wanted,))}))
        assert main(["reassign", "execute", "--bootstrap", two.bootstrap, "--json", str(tmp_path / "plan.json")]) == 2
        assert f"orders-0: broker 1 has no directory {wanted}" in capsys.readouterr().err
        assert two.replicas("orders") == [[0]]


@pytest.mark.spec("DIR-10")
def test_a_setting_that_is_refused_is_told(brokers: Brokers) -> None:
    with reassign._connected(brokers.bootstrap) as cluster:
        throttled = {THROTTLED_REPLICAS[0]: "0:0"}
        refused = cluster.set_configs("topic", {"absent": throttled, "orders": throttled})
        assert list(refused) == ["topic absent"]
        assert "UnknownTopicOrPartition" in refused["topic absent"]
        assert cluster.set_configs("topic", {"orders": {THROTTLED_REPLICAS[0]: None}}) == {}


@pytest.mark.spec("CLU-32")
def test_generate_says_where_directories_are_no_disks_of_their_own(
    brokers: Brokers, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on any machine for trying things out; the fill levels alone would say that all is level."""
    assert main(["reassign", "generate", "--bootstrap", brokers.bootstrap]) == 0
    told = capsys.readouterr()
    assert "The directories of broker 0 seem to share one volume" in told.err
    assert f"ballast rebalance --bootstrap {brokers.bootstrap} --capacity SIZE" in told.err


@pytest.mark.spec("CLU-32")
def test_generate_says_in_words_that_there_is_nothing_to_move(
    brokers: Brokers, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty plan alone leaves it open whether all is level or something went wrong."""
    assert main(["reassign", "generate", "--bootstrap", brokers.bootstrap]) == 0
    assert "There is nothing to move" in capsys.readouterr().out


def test_no_topics_are_not_all_topics(brokers: Brokers, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty name, such as an unset variable gives."""
    assert main(["reassign", "generate", "--bootstrap", brokers.bootstrap, "--topics", ""]) == 2
    assert "topic  is not known to the cluster" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("action", "option", "whose"),
    [
        ("generate", "--throttle=1", "execute"),
        ("cancel", "--replica-alter-log-dirs-throttle=1", "execute"),
        ("execute", "--topics=orders", "generate"),
        ("verify", "--brokers=0", "generate"),
        ("verify", "--additional", "execute"),
        ("generate", "--wait", "execute, verify"),
        ("generate", "--timeout-ms=5000", "cancel, execute"),
        ("verify", "--timeout-ms=5000", "cancel, execute"),
    ],
)
def test_an_option_of_another_action_is_refused(
    action: str, option: str, whose: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As Apache Kafka's tool does: who thinks that a plan is throttled would learn it from the network."""
    path = tmp_path / "plan.json"
    path.write_text(write_plan({}))
    with pytest.raises(SystemExit) as ended:  # as of any argument that cannot be: before anything is installed
        main(["reassign", action, "--bootstrap", "localhost:1", "--json", str(path), option])
    assert ended.value.code == 2
    assert f"{action} has no {option.partition('=')[0]}: that is for {whose}." in capsys.readouterr().err


def test_rates_are_taken_as_everywhere_else(capsys: pytest.CaptureFixture[str]) -> None:
    """50Mi was refused, without a word of what is taken."""
    words = ["execute", "--bootstrap", "a:1", "--json", "plan"]
    for rate, number in (("50Mi", 50 * 2**20), ("50000000", 50_000_000), ("0.5G", 500_000_000)):
        args = load("reassign").parse([*words, "--throttle", rate, "--replica-alter-log-dirs-throttle", rate])
        assert (args.throttle, args.replica_alter_log_dirs_throttle) == (number, number)
    nothing = "nothing would ever arrive"
    for rate, says in (("50MB", "'50MB' is no quantity such as 50Mi"), ("0", nothing), ("50m", nothing)):
        with pytest.raises(SystemExit, match="2"):
            main(["reassign", *words, "--throttle", rate])
        assert f"argument --throttle: {rate!r}" in (told := capsys.readouterr().err)
        assert says in told


@pytest.mark.parametrize("name", ["operator", "reassign", "status"])
def test_what_an_image_of_brokers_runs_needs_nothing_of_the_job(name: str) -> None:
    """Which is in Spark's image only."""
    words = "import sys; from ballast_cli.__main__ import load; load(sys.argv[1]); print([*sys.modules])"
    told = subprocess.run([sys.executable, "-c", words, name], capture_output=True, text=True, check=True)
    assert "ballast_cli" in told.stdout
    assert "ballast_rebalance" not in told.stdout


@pytest.mark.parametrize("action", ["execute", "verify", "cancel"])
def test_a_plan_that_moves_nothing_is_done(action: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As `generate` writes it where all is level: what a script does next with it is no mistake."""
    path = tmp_path / "plan.json"
    path.write_text(write_plan({}))
    assert main(["reassign", action, "--bootstrap", "localhost:1", "--json", str(path)]) == 0
    assert "nothing to do" in capsys.readouterr().out


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
        assert "throttle not removed: broker 0: ClusterAuthorizationFailedError" in shown.err
        assert "Throttles are removed" not in shown.out
    assert main(["reassign", "execute", *words, "--wait"]) == 0
    assert "Throttles are removed" in capsys.readouterr().out


@pytest.mark.spec("DIR-10")
def test_what_does_not_exist_or_is_elsewhere_is_the_last_word(
    brokers: Brokers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a topic that was deleted on its way the brokers' throttles are removed, which sounded as if all were well."""
    path = tmp_path / "plan.json"
    path.write_text(write_plan({Key("orders", 99): Target((0,), ("any",)), Key("nowhere", 0): Target((0,), ("any",))}))
    assert main(["reassign", "verify", "--bootstrap", brokers.bootstrap, "--json", str(path)]) == 1
    told = capsys.readouterr()
    assert "nowhere-0: does not exist\norders-99: does not exist\n" in told.out
    assert told.err == "Not as planned: 2 of 2 partitions.\n"


def test_a_broker_that_goes_away_is_a_sentence_and_no_traceback(brokers: Brokers) -> None:
    with pytest.raises(CommandError, match="stopped answering"), reassign._connected(brokers.bootstrap):
        raise NodeNotReadyError("broker 0 is gone")


def test_who_stops_following_learns_that_the_moves_go_on(
    brokers: Brokers, plan: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(reassign, "progress", interrupt)
    args = ["verify", "--bootstrap", brokers.bootstrap, "--json", str(plan), "--wait"]
    with pytest.raises(KeyboardInterrupt):
        reassign.run(load("reassign").parse(args))
    told = capsys.readouterr().err
    assert "The moves continue." in told
    assert "reassign verify" in told


@pytest.mark.spec("DIR-10")
def test_what_ended_before_it_could_be_cancelled_does_not_count_as_cancelled(
    brokers: Brokers, plan: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    look = Cluster.look
    monkeypatch.setattr(Cluster, "look", lambda self: replace(look(self), reassigning=frozenset({Key("orders", 0)})))
    assert main(["reassign", "cancel", "--bootstrap", brokers.bootstrap, "--json", str(plan)]) == 1
    told = capsys.readouterr()
    assert "not cancelled: orders-0: " in told.err
    assert told.out.startswith("Cancelled: 0 reassignments, 0 moves between directories\n")


@pytest.mark.spec("DIR-10")
def test_a_reassignment_that_ends_during_a_look_has_not_failed(
    brokers: Brokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers.join(1)
    brokers.create("moving", [[0]])
    brokers.produce("moving", [0], 0.5)
    plan = {Key("moving", 0): Target((1,), ("any",))}
    (tmp_path / "plan.json").write_text(write_plan(plan))
    words = ["--bootstrap", brokers.bootstrap, "--json", str(tmp_path / "plan.json"), "--throttle", "1000"]
    assert main(["reassign", "execute", *words]) == 0
    with reassign._connected(brokers.bootstrap) as cluster:
        admin = cluster._admin
        describe = admin.describe_log_dirs

        def ends_meanwhile(*asked: object, **more: object) -> object:
            unlimited: dict[str, str | None] = dict.fromkeys(INTER_BROKER_RATES)
            assert cluster.set_configs("broker", {"0": unlimited, "1": unlimited}) == {}
            eventually(lambda: not admin.list_partition_reassignments(), "the reassignment ends")
            return describe(*asked, **more)

        assert admin.list_partition_reassignments(), "it is still under way"
        monkeypatch.setattr(admin, "describe_log_dirs", ends_meanwhile)
        (state,) = progress(plan, cluster.look())
        assert not state.failed, state.text
    eventually(lambda: main(["reassign", "verify", *words[:4]]) == 0)


def test_a_broker_that_hangs_but_is_not_fenced_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    describe = Admin.describe_log_dirs
    with Brokers(tmp_path, 2, [0, 1]) as two:

        def hangs(admin: Any, *asked: object, **more: object) -> object:
            two[1].pause()
            return describe(admin, *asked, **more)

        monkeypatch.setattr(Admin, "describe_log_dirs", hangs)
        assert main(["reassign", "generate", "--bootstrap", two.bootstrap]) == 2
    assert "Error: broker 1 does not describe its directories. Nothing was changed." in capsys.readouterr().err


@pytest.mark.spec("CLU-32", "DIR-40")
def test_what_is_under_way_stays_throttled_when_more_is_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lists that Apache Kafka's tool sets for the same three commands; and rates that are one for all plans."""
    told: list[Mapping[str, str | None]] = []
    set_configs = Cluster.set_configs

    def noted(cluster: Cluster, kind: str, changes: Mapping[str, Mapping[str, str | None]]) -> dict[str, str]:
        if kind == "topic":
            told.append(changes["slow"])
        return set_configs(cluster, kind, changes)

    monkeypatch.setattr(Cluster, "set_configs", noted)
    with Brokers(tmp_path, 2, [0, 1]) as two:
        two.create("slow", [[0], [0]])
        two.produce("slow", [0, 1], 0.5)
        for number, more in (0, []), (0, ["--additional"]), (1, ["--additional"]):
            path = tmp_path / "plan.json"
            path.write_text(write_plan({Key("slow", number): Target((1,), ("any",))}))
            words = ["--bootstrap", two.bootstrap, "--json", str(path)]
            assert main(["reassign", "execute", *words, "--throttle", "1000", *more]) == 0
        path.write_text(write_plan({Key("other", 0): Target((0,), ("any",))}))
        two.create("other", [[0]])
        monkeypatch.undo()
        assert main(["reassign", "verify", *words]) == 0
        told_of_others = capsys.readouterr().out
        assert "other-0: complete" in told_of_others
        assert "Throttles are kept: 2 other partitions being reassigned." in told_of_others
        with reassign._connected(two.bootstrap) as cluster:
            assert len(cluster.look().reassigning) == 2, "still as slow as they were"
    first = dict(zip(THROTTLED_REPLICAS, ("0:0", "0:1"), strict=True))
    assert told == [first, first, dict(zip(THROTTLED_REPLICAS, ("0:0,1:0", "0:1,1:1"), strict=True))]


def test_who_follows_believes_in_a_failure_that_is_seen_twice(
    brokers: Brokers, plan: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The broker that is asked may be a moment behind the controller that has moved the replicas."""
    key = Key("orders", 0)
    behind = State(key, "is on [0] and not being moved to [1]", done=True, failed=True, left_bytes=0)
    there = State(key, "complete", done=True, failed=False, left_bytes=0)
    args = ["reassign", "verify", "--wait", "--bootstrap", brokers.bootstrap, "--json", str(plan)]
    monkeypatch.setattr(reassign, "LOOK_EVERY_S", 0.0)
    real_look = Cluster.look
    for states, code in ([behind, there], 0), ([behind, behind], 1):
        looks: list[Snapshot] = []

        def look(cluster: Cluster, looks: list[Snapshot] = looks) -> Snapshot:
            looks.append(real_look(cluster))
            return looks[-1]

        def state(_: Plan, seen: Snapshot, looks: list[Snapshot] = looks, states: list[State] = states) -> list[State]:
            return [states[looks.index(seen)]]

        monkeypatch.setattr(Cluster, "look", look)
        monkeypatch.setattr(reassign, "progress", state)
        assert main(args) == code
        assert f"orders-0: {states[-1].text}" in capsys.readouterr().out
        assert len(looks) == 2


@pytest.mark.spec("DIR-40")
def test_who_follows_goes_on_when_a_broker_restarts_meanwhile(
    brokers: Brokers, plan: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Moves take hours; a broker that is away for a moment is no reason to leave their throttles where they are."""
    words = ["--bootstrap", brokers.bootstrap, "--json", str(plan)]
    assert main(["reassign", "execute", *words]) == 0
    real_look = Cluster.look
    answers = [KafkaConnectionError("111 ECONNREFUSED"), NodeNotReadyError("broker 0")]

    def look(cluster: Cluster) -> Snapshot:
        if answers:
            raise answers.pop()
        return real_look(cluster)

    monkeypatch.setattr(reassign, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(Cluster, "look", look)
    assert main(["reassign", "verify", "--wait", *words]) == 0
    assert "orders-0: complete" in capsys.readouterr().out
    answers[:] = [NodeNotReadyError("broker 0")] * 3
    monkeypatch.setattr(reassign, "PATIENCE_S", 0.0)
    assert main(["reassign", "verify", "--wait", *words]) == 2
    assert "stopped answering: NodeNotReadyError: broker 0. What has started continues." in capsys.readouterr().err
    answers[:] = [NodeNotReadyError("broker 0")]
    assert main(["reassign", "generate", *words[:2]]) == 2
    assert "stopped answering: NodeNotReadyError: broker 0. Nothing was changed." in capsys.readouterr().err


@pytest.mark.spec("DIR-44")
def test_generate_sends_nothing_into_a_cordoned_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whichever is the open one: the plan names it, and none where all are cordoned."""
    with Brokers(tmp_path, 2, [0, 1]) as two:
        two.create("orders", [[0]])
        directories = {str(volume) for volume in two[1].volumes}
        for open_one in sorted(directories):
            _cordon(two, directories - {open_one})
            assert _proposed(two, capsys) == {Key("orders", 0): Target((1,), (open_one,))}
        _cordon(two, directories)
        assert _proposed(two, capsys) == {}


@pytest.mark.spec("DIR-10")
def test_what_a_broker_held_that_is_away_is_put_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It cannot be asked for its directories, nor told a throttle; the others can."""
    with Brokers(tmp_path, 3, [0, 1, 2], racks=["a", "b", "b"]) as three:
        three.create("orders", [[0, 1], [2, 0]])
        three[2].kill()
        three.until_nobody_is_told_of(2)
        with reassign._connected(three.bootstrap) as cluster:
            assert cluster.look().away == ((2, "b"),)
        words = ["--bootstrap", three.bootstrap, "--json", str(tmp_path / "plan.json")]
        assert main(["reassign", "generate", *words]) == 0
        told = capsys.readouterr()
        assert '"replicas": [' not in told.out  # nobody asked for it to leave
        assert told.err.splitlines()[0] == (
            "broker 2 is offline: its directories are unknown, and nothing is moved there"
        )
        assert main(["reassign", "generate", *words, "--brokers", "0,1"]) == 0
        shown = capsys.readouterr().out
        assert '"partition": 1, "replicas": [1, 0]' in shown
        assert "nothing to move" not in shown
        assert main(["reassign", "execute", *words, "--throttle", "1000000", "--wait"]) == 0
        told = capsys.readouterr()
        assert "orders-1: complete" in told.out
        assert "Throttles are removed, except on brokers that are offline." in told.out
        assert "throttle possibly not removed: broker 2 is offline" in told.err
        assert main(["reassign", "cancel", *words]) == 0
        back = write_plan({Key("orders", 1): Target((2, 0), ("any", "any"))})
        (tmp_path / "plan.json").write_text(back)
        assert main(["reassign", "execute", *words]) == 2
        assert "brokers [2] do not exist or are offline" in capsys.readouterr().err


def _cordon(brokers: Brokers, paths: set[str]) -> None:
    with reassign._connected(brokers.bootstrap) as cluster:
        assert cluster.set_configs("broker", {"1": {"cordoned.log.dirs": ",".join(sorted(paths))}}) == {}
        eventually(lambda: {each.path for each in cluster.look().directories if each.cordoned} == paths)


def _proposed(brokers: Brokers, capsys: pytest.CaptureFixture[str]) -> Plan:
    assert main(["reassign", "generate", "--bootstrap", brokers.bootstrap, "--brokers", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    text = lines[lines.index("Proposed partition reassignment configuration") + 1]
    return read_plan(text)
