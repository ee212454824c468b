"""The parts that need no server: schedules, addresses, substitution, patches, field sets, tables, protobuf."""

import asyncio
import io
import json
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.local.conftest import Api, Refused, Running

from ballast_local import field_sets, jsonpath
from ballast_local.certificates import make_certificate
from ballast_local.errors import ApiError
from ballast_local.field_types import RootType
from ballast_local.patch import json_patch, merge_patch, strategic_patch
from ballast_local.protobuf import decode_body
from ballast_local.quantity import parse_quantity
from ballast_local.table import duration
from ballast_local.workloads.addresses import Addresses
from ballast_local.workloads.housekeeping import cut_logs, remove_old_events
from ballast_local.workloads.logs import CHUNK_BYTES, Run, _tail_start
from ballast_local.workloads.process import run_command
from ballast_local.workloads.schedule import Schedule
from ballast_local.workloads.substitution import Substitution, expand


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "after", "due"),
    [
        ("* * * * *", "2025-01-01T00:00:30", "2025-01-01T00:01:00"),
        ("*/15 3 * * *", "2025-01-01T03:46:00", "2025-01-02T03:00:00"),
        ("0 0 29 2 *", "2025-01-01T00:00:00", "2028-02-29T00:00:00"),
        ("0 12 * * mon-fri", "2025-01-03T12:00:00", "2025-01-06T12:00:00"),
        ("0 0 13 * 5", "2025-01-01T00:00:00", "2025-01-03T00:00:00"),
        ("@monthly", "2025-01-31T10:00:00", "2025-02-01T00:00:00"),
        ("5,10 0 1 jan 7", "2025-01-01T00:05:00", "2025-01-01T00:10:00"),
    ],
)
def test_schedules(text: str, after: str, due: str) -> None:
    assert Schedule.parse(text).next_after(at(after)) == at(due)


def test_schedules_that_never_come_due_or_are_none() -> None:
    with pytest.raises(ValueError, match="never"):
        Schedule.parse("0 0 30 2 *").next_after(at("2025-01-01T00:00:00"))
    for text in ("* * * *", "60 * * * *", "*/0 * * * *", "a * * * *", "5-1 * * * *"):
        with pytest.raises(ValueError):  # noqa: PT011
            Schedule.parse(text)


def test_a_schedule_in_a_zone_and_what_was_missed() -> None:
    schedule = Schedule.parse("30 2 * * *", "Asia/Kolkata")
    assert schedule.next_after(at("2025-01-01T00:00:00")) == at("2025-01-01T21:00:00")
    hourly = Schedule.parse("@hourly")
    start = at("2025-01-01T00:00:00")
    assert hourly.latest_between(start, start + timedelta(hours=5, minutes=1)) == at("2025-01-01T05:00:00")
    assert hourly.latest_between(start, start + timedelta(minutes=59)) is None


def test_a_clock_that_is_set_back_shows_no_minute_twice() -> None:
    """On 26 October 2025 Berlin has the hour after 02:00 two times, from midnight UTC."""
    schedule = Schedule.parse("30 * * * *", "Europe/Berlin")
    found = [at("2025-10-25T23:45:00")]
    for _ in range(4):
        found.append(schedule.next_after(found[-1]))
        assert found[-1] > found[-2]
    assert found[-1] <= at("2025-10-26T04:30:00")
    second = at("2025-10-26T01:10:00")
    assert schedule.next_after(second) > second
    assert schedule.latest_between(second, second + timedelta(minutes=5)) is None


def test_addresses_belong_to_names(tmp_path: Path) -> None:
    path = tmp_path / "addresses.json"
    addresses = Addresses(path, "salt", many=True)
    given_out = {addresses.take(f"pod/n/p-{index}") for index in range(500)}
    assert len(given_out) == 500
    assert all(address.startswith("127.") and not address.endswith((".0", ".255")) for address in given_out)
    first = addresses.take("pod/n/p-0")
    assert Addresses(path, "salt", many=True).take("pod/n/p-0") == first
    assert Addresses(tmp_path / "other.json", "pepper", many=True).take("pod/n/p-0") != first
    assert Addresses(tmp_path / "one.json", "salt", many=False).take("pod/n/p-0") == "127.0.0.1"


def test_addresses_hold_while_they_cannot_be_written(tmp_path: Path) -> None:
    """On a full disk: pods begin all the same, and what is written later has them all."""
    path = tmp_path / "addresses.log"
    addresses = Addresses(path, "salt", many=True)
    path.unlink()
    path.mkdir()
    first = addresses.take("pod/n/p-0")
    path.rmdir()
    addresses.take("pod/n/p-1")
    assert json.loads(path.read_text().splitlines()[0]) == ["pod/n/p-0", first]


def test_the_last_of_many_missed_times_is_found_without_going_through_all(monkeypatch: pytest.MonkeyPatch) -> None:
    minutely, yearly = Schedule.parse("* * * * *"), Schedule.parse("@yearly")
    steps: list[datetime] = []
    step = Schedule.next_after

    def counted(one: Schedule, moment: datetime) -> datetime:
        steps.append(moment)
        return step(one, moment)

    monkeypatch.setattr(Schedule, "next_after", counted)
    assert minutely.latest_between(at("2005-01-01T00:00:00"), at("2025-01-01T00:00:30")) == at("2025-01-01T00:00:00")
    assert yearly.latest_between(at("2023-06-01T00:00:00"), at("2025-11-01T00:00:00")) == at("2025-01-01T00:00:00")
    assert yearly.latest_between(at("2025-01-01T00:00:00"), at("2025-11-01T00:00:00")) is None
    assert len(steps) < 100


def test_substitution() -> None:
    def resolve(namespace: str, service: str, pod: str) -> str | None:
        return {("n", "s", ""): "127.1.1.1", ("n", "s", "p-0"): "127.1.1.2"}.get((namespace, service, pod))

    substitute = Substitution({"/data": "/real/d", "/data/deep": "/real/deep"}, resolve)
    for text, wanted in (
        ("/data", "/real/d"),
        ("--dir=/data/x,/data/deep/y", "--dir=/real/d/x,/real/deep/y"),
        ("/database /srv/data", "/database /srv/data"),
        ("log.dirs=/data\n", "log.dirs=/real/d\n"),
        ("1@p-0.s.n.svc:9093,2@p-9.s.n.svc.cluster.local:9093", "1@127.1.1.2:9093,2@p-9.s.n.svc.cluster.local:9093"),
        ("s.n.svc.cluster.local", "127.1.1.1"),
        ("other.n.svc s.n.svcs", "other.n.svc s.n.svcs"),
    ):
        assert substitute(text) == wanted
    assert expand("$(A) $(B) $$(A) $$", {"A": "1"}) == "1 $(B) $(A) $"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab/~", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab/~", max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text("abc", max_size=2), JSON, max_size=4), st.dictionaries(st.text("abc", max_size=2), JSON))
def test_a_merge_patch_is_idempotent(target: Any, patch: Any) -> None:
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once


@given(st.dictionaries(st.text("ab/~", max_size=2), JSON, min_size=1, max_size=4), JSON)
def test_what_a_json_patch_adds_it_can_test_and_remove(target: Any, value: Any) -> None:
    for name in target:
        path = "/" + name.replace("~", "~0").replace("/", "~1")
        patched = json_patch(target, [{"op": "replace", "path": path, "value": value},
                                      {"op": "test", "path": path, "value": value}])  # fmt: skip
        assert patched[name] == value
        assert name not in json_patch(patched, [{"op": "remove", "path": path}])


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "remove", "path": "/none"},
        {"op": "replace", "path": "/l/9", "value": 1},
        {"op": "add", "path": "/l/x", "value": 1},
        {"op": "test", "path": "/n", "value": True},
        {"op": "frob", "path": "/n"},
        {"op": "add", "path": "n", "value": 1},
    ],
)
def test_refused_json_patches(operation: dict[str, Any]) -> None:
    with pytest.raises(ApiError):
        json_patch({"n": 1, "l": [1]}, [operation])


def test_strategic_directives() -> None:
    containers = [{"name": "a", "env": [{"name": "X", "value": "1"}]}, {"name": "b"}]
    target = {"spec": {"containers": containers, "strategy": {"type": "RollingUpdate", "rollingUpdate": {}}}}
    patch = {"spec": {
        "$setElementOrder/containers": [{"name": "b"}, {"name": "a"}],
        "containers": [{"name": "a", "env": [{"name": "X", "$patch": "delete"}, {"name": "Y", "value": "2"}]}],
        "strategy": {"$retainKeys": ["type"], "type": "Recreate"},
    }}  # fmt: skip
    patched = strategic_patch(target, patch)["spec"]
    assert patched["containers"] == [{"name": "b"}, {"name": "a", "env": [{"name": "Y", "value": "2"}]}]
    assert patched["strategy"] == {"type": "Recreate"}


def test_field_sets_go_there_and_back() -> None:
    pod = {"metadata": {"labels": {"a.b/c": "x"}, "finalizers": ["f"]},
           "spec": {"containers": [{"name": "c", "ports": [{"containerPort": 80}], "command": ["x"]}]}}  # fmt: skip
    paths = set(field_sets.leaves(pod, RootType(None)))
    assert field_sets.decode_set(field_sets.encode_set(paths)) == paths
    shown = {field_sets.describe(path) for path in paths}
    assert '.spec.containers[name="c"].command' in shown
    assert '.spec.containers[name="c"].ports[containerPort=80,protocol="TCP"].containerPort' in shown


def test_json_paths() -> None:
    obj = {
        "status": {"conditions": [{"type": "A", "status": "1"}, {"type": "Ready", "status": "True"}]},
        "a": {"b.c": 1},
    }
    for path, wanted in (
        ('.status.conditions[?(@.type=="Ready")].status', ["True"]),
        (".status.conditions[*].type", ["A", "Ready"]),
        (".status.conditions[0].status", ["1"]),
        (r".a.b\.c", [1]),
        ("{.a['b.c']}", [1]),
        (".none.x", []),
    ):
        assert jsonpath.path(path).find(obj) == wanted
    with pytest.raises(ValueError, match="is no JSONPath"):
        jsonpath.path(".a[?bad")


AGES = {
    0: "0s", 119: "119s", 120: "2m", 599: "9m59s", 3600: "60m", 10800: "3h", 90000: "25h", 200000: "2d7h",
    86400 * 30: "30d", 86400 * 800: "2y70d",
}  # fmt: skip


@pytest.mark.parametrize(("seconds", "text"), AGES.items())
def test_ages(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_quantities() -> None:
    assert parse_quantity("1Gi") == 2**30
    assert parse_quantity("1500m") * 2 == 3
    assert parse_quantity("1e3") == 1000
    for text in ("", "1Q", "Gi", "--1"):
        with pytest.raises(ValueError, match="not a quantity"):
            parse_quantity(text)


def test_a_certificate_that_a_client_accepts(tmp_path: Path) -> None:
    certificate, key = make_certificate()
    (tmp_path / "c.pem").write_text(certificate + key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "c.pem")
    client = ssl.create_default_context(cadata=certificate)
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    incoming, outgoing = (ssl.MemoryBIO(), ssl.MemoryBIO()), (ssl.MemoryBIO(), ssl.MemoryBIO())
    sides = [client.wrap_bio(*incoming, server_hostname="127.0.0.1"), context.wrap_bio(*outgoing, server_side=True)]
    done = [False, False]
    for _ in range(10):
        for index, side in enumerate(sides):
            try:
                side.do_handshake()
                done[index] = True
            except ssl.SSLWantReadError:
                pass
            outgoing[0].write(incoming[1].read())
            incoming[0].write(outgoing[1].read())
    assert done == [True, True]


def test_protobuf_of_a_config_map() -> None:
    def field(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2, len(content)]) + content

    pair = field(1, b"a") + field(2, b"b")
    message = field(1, field(1, b"name") + field(2, b"")) + field(2, pair)
    body = b"k8s\0" + field(1, field(1, b"v1") + field(2, b"ConfigMap")) + field(2, message)
    wanted = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "name"}, "data": {"a": "b"}}
    assert decode_body(body) == wanted
    for broken in (b"", b"k8s\0\xff", body[:-3]):
        with pytest.raises(ApiError):
            decode_body(broken)


def test_protobuf_that_is_not_read_says_another_way() -> None:
    body = b"k8s\0\n\x0f\n\x08batch/v1\x12\x03Job"
    with pytest.raises(ApiError, match=r"reads no Job in protobuf.*--dry-run=client -o yaml") as refused:
        decode_body(body)
    assert refused.value.code == 415


def test_logs_are_cut(tmp_path: Path) -> None:
    logs = tmp_path / "uid" / "logs"
    logs.mkdir(parents=True)
    (logs / "c.log").write_bytes(b"x" * 100)
    cut_logs(tmp_path, limit_bytes=100)
    assert (logs / "c.log").stat().st_size == 100
    cut_logs(tmp_path, limit_bytes=99)
    assert (logs / "c.log").stat().st_size == 0
    assert (logs / "c.previous.log").stat().st_size == 100


def test_who_follows_a_log_reads_all_of_it_when_it_is_cut(tmp_path: Path) -> None:
    """Also what was written after the last look at it."""
    logs = tmp_path / "uid" / "logs"
    logs.mkdir(parents=True)
    with (logs / "c.log").open("ab", buffering=0) as writer, (logs / "c.log").open("rb", buffering=0) as file:
        run = Run(logs / "c.log", file, 0)
        writer.write(b"first\n")
        assert run.read(100) == (b"first\n", False)
        writer.write(b"second\n")
        cut_logs(tmp_path, limit_bytes=0)
        writer.write(b"third\n")
        assert [run.read(100)[0], run.read(100)[0], run.read(100)[0]] == [b"second\n", b"third\n", b""]


@pytest.mark.parametrize(
    ("written", "lines", "start"),
    [
        (b"a\nb", 0, 3),
        (b"a\nb", 1, 2),
        (b"a\nb", 2, 0),
        (b"a\nb\n", 0, 4),
        (b"a\nb\n", 1, 2),
        (b"a\n\n", 1, 2),
        (b"a", 1, 0),
        (b"", 0, 0),
        (b"", 1, 0),
        (b"a\n" + b"b" * CHUNK_BYTES, 1, 2),
        (b"a\n" + b"b" * CHUNK_BYTES + b"\n", 1, 2),
    ],
)
def test_where_the_last_lines_of_a_log_begin(written: bytes, lines: int, start: int) -> None:
    assert _tail_start(io.BytesIO(written), lines) == start


def test_a_log_that_goes_while_it_is_looked_at_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "uid" / "logs").mkdir(parents=True)
    (tmp_path / "uid" / "logs" / "c.log").symlink_to(tmp_path / "gone")
    cut_logs(tmp_path, limit_bytes=0)


def test_what_is_too_large_is_refused(api: Api, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    with pytest.raises(Refused, match="may not be more than 1048576 bytes"):
        api.post(path, {"metadata": {"name": "c"}, "data": {"a": "x" * 1048577}})
    with pytest.raises(Refused, match="may not be more than 262144 bytes"):
        api.post(path, {"metadata": {"name": "c", "annotations": {"a": "x" * 262144}}})
    api.post(path, {"metadata": {"name": "c"}, "data": {"a": "x" * 1048576}})


def test_events_go_after_an_hour(running: Running, api: Api, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/events"
    about = {"involvedObject": {"kind": "Pod", "name": "p", "namespace": namespace}}
    for name, age in (("old", 2), ("new", 0)):
        seen = (datetime.now(UTC) - timedelta(hours=age)).strftime("%Y-%m-%dT%H:%M:%SZ")
        api.post(path, {"metadata": {"name": name}, "lastTimestamp": seen} | about)

    async def clean() -> int:
        assert running.cluster._workloads is not None
        return remove_old_events(running.cluster._workloads._housekeeping, datetime.now(UTC))

    assert running.run(clean()) == 1
    assert [event["metadata"]["name"] for event in api.get(path)["items"]] == ["new"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda spec: spec.update(volumes=[{"name": "v", "nfs": {}}]), r"spec\.volumes\[0\]\.nfs: Forbidden"),
        (
            lambda spec: spec.update(
                volumes=[{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]
            ),
            r"projected\.sources\[0\]\.serviceAccountToken: Forbidden",
        ),
        (lambda spec: spec.update(schedulingGates=[{"name": "g"}]), "schedulingGates: Forbidden"),
        (lambda spec: spec["containers"][0].update(readinessProbe={"grpc": {"port": 1}}), "grpc: Forbidden"),
        (lambda spec: spec["containers"][0].update(lifecycle={"postStart": {}}), "postStart: Forbidden"),
        (lambda spec: spec["containers"][0].update(volumeMounts=[{"name": "x", "mountPath": "/x"}]), "Not found"),
        (lambda spec: spec.update(containers=[]), "spec.containers: Required value"),
    ],
)
def test_pods_that_could_not_be_what_they_say_are_refused(
    api: Api, namespace: str, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    spec = {"containers": [{"name": "c", "image": "none", "command": ["true"]}]}
    change(spec)
    with pytest.raises(Refused, match=message) as refused:
        api.post(f"/api/v1/namespaces/{namespace}/pods", {"metadata": {"name": "p"}, "spec": spec})
    assert refused.value.code == 422


async def test_a_probe_hears_that_it_is_cancelled_when_its_command_ends_just_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it goes on for ever, and whoever waits for its container with it."""
    communicate = asyncio.subprocess.Process.communicate

    async def cancelled_at_the_end(process: asyncio.subprocess.Process, given: Any = None) -> tuple[bytes, bytes]:
        found = await communicate(process, given)
        probing.cancel()
        return found

    monkeypatch.setattr(asyncio.subprocess.Process, "communicate", cancelled_at_the_end)
    probing = asyncio.create_task(run_command(["true"], {"PATH": "/usr/bin:/bin"}, tmp_path, 30))
    await asyncio.wait({probing})
    assert probing.cancelled()
