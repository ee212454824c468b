"""Asking Prometheus: retries, refusals, partial answers, splits under its limits."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest
from tests.certificates import Authority

from ballast_rebalance import prometheus_http
from ballast_rebalance.access import AccessFiles
from ballast_rebalance.measured import Refusal
from ballast_rebalance.metrics_source import MetricsOptions, _Source
from ballast_rebalance.prometheus import (
    Ask,
    PrometheusStreamReader,
    Settings,
    Split,
    plan_instant,
    plan_range,
    read_split,
)
from ballast_rebalance.prometheus_http import Endpoint, PartialAnswerError, PrometheusError

Answer = tuple[int, Any]
BROKEN_OFF = object()  # in the middle of a chunk, as when Prometheus is killed
ENDLESS = object()  # there is always something more
STALLED = object()  # nothing comes of the body that was announced


class FakePrometheus:
    """The query API over real HTTP; what it answers is a function of path and parameters."""

    def __init__(self, answer: Callable[[str, dict[str, str]], Answer]) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.headers: list[dict[str, str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self._reply(self.rfile.read(int(self.headers["Content-Length"])).decode())

            def do_GET(self) -> None:
                self._reply(urllib.parse.urlparse(self.path).query)

            def _reply(self, text: str) -> None:
                path, parameters = urllib.parse.urlparse(self.path).path, dict(urllib.parse.parse_qsl(text))
                outer.asked.append((path, parameters))
                outer.headers.append({name.lower(): value for name, value in self.headers.items()})
                status, document = answer(path, parameters)
                if document is BROKEN_OFF:
                    self.send_response(status)
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    self.wfile.write(b"400\r\n{")
                    return
                if document in (ENDLESS, STALLED):
                    self._keep_open(status, document is ENDLESS)
                    return
                body = document if isinstance(document, bytes) else json.dumps(document).encode()
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("Location", body.decode())
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def _keep_open(self, status: int, sending: bool) -> None:
                self.send_response(status)
                self.send_header("Content-Length", "1000000000")
                self.end_headers()
                with contextlib.suppress(OSError):
                    while sending:
                        self.wfile.write(b" " * 100_000)
                    self.rfile.read(1)  # until the client goes

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[str, dict[str, str]], Answer]], FakePrometheus]]:
    servers: list[FakePrometheus] = []

    def start(answer: Callable[[str, dict[str, str]], Answer]) -> FakePrometheus:
        servers.append(FakePrometheus(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


Serve = Callable[[Callable[[str, dict[str, str]], Answer]], FakePrometheus]


def vector(*rows: tuple[dict[str, str], float]) -> Any:
    result = [{"metric": metric, "value": [1000.0, str(value)]} for metric, value in rows]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


@pytest.mark.spec("REB-02")
def test_passing_faults_are_tried_again(serve: Serve) -> None:
    answers = iter([(503, {}), (200, b'{"status":"succ'), (200, BROKEN_OFF), (200, vector(({"a": "b"}, 1.5)))])
    server = serve(lambda *_: next(answers))
    endpoint = Endpoint(server.url, first_pause_s=0.001)
    assert endpoint.query("up")[0]["metric"] == {"a": "b"}
    assert len(server.asked) == 4


def test_the_proxy_for_the_world_outside_is_not_asked_for_this_machine(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, proxy = (serve(lambda *_: (200, vector(({"a": "b"}, 1.0)))) for _ in range(2))
    monkeypatch.setenv("http_proxy", proxy.url)
    monkeypatch.delenv("no_proxy", raising=False)
    prometheus_http._opener.cache_clear()
    for url in (server.url, server.url.replace("127.0.0.1", "localhost")):
        Endpoint(url, attempts=1).query("up")
    assert (len(server.asked), len(proxy.asked)) == (2, 0)
    Endpoint("http://prometheus.invalid:9090", attempts=1).query("up")
    assert len(proxy.asked) == 1
    prometheus_http._opener.cache_clear()


@pytest.mark.spec("REB-02")
def test_a_certificate_of_an_authority_of_ones_own(serve: Serve, tmp_path: Path) -> None:
    """As of a Prometheus in OpenShift; the driver reads the file, and workers are told what is in it."""
    ours, others = Authority(tmp_path / "ours"), Authority(tmp_path / "others")
    server = serve(lambda *_: (200, vector(({"a": "b"}, 1.0))))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(ours.issue("prometheus"))
    server.server.socket = context.wrap_socket(server.server.socket, server_side=True)
    url = server.url.replace("http:", "https:")
    for file in (None, others.ca):
        options = MetricsOptions(url, files=AccessFiles(authorities=file))
        endpoint = Endpoint(url, attempts=1, authorities=options.access()["authorities"] or None)
        with pytest.raises(PrometheusError, match="certificate verify failed"):
            endpoint.query("up")
    told = MetricsOptions(url, files=AccessFiles(authorities=ours.ca)).access()
    assert Settings.from_options({"url": url, "query": "up", **told}).endpoint.query("up")[0]["metric"] == {"a": "b"}


def secret(folder: Path, files: Mapping[str, str]) -> Path:
    """A folder as kubelet mounts a Secret: the names are links to what is in another folder, and that is replaced."""
    data = folder / "..data"
    data.mkdir(parents=True)
    for name, text in files.items():
        (data / name).write_bytes(text.encode())
        (folder / name).symlink_to(Path("..data") / name)
    return folder


TOKEN = {"authorization": "Bearer eyJ.hush"}
BASIC = {"authorization": "Basic bWU6IGh1c2g6wqc="}


@pytest.mark.spec("REB-02")
@pytest.mark.parametrize(
    ("files", "sent"),
    [
        ({"token": "eyJ.hush\n"}, TOKEN),
        ({"username": "me\n", "password": " hush:\u00a7\r\n"}, BASIC),
        ({"headers": "X-Scope-OrgID: a|b\n\nx-key:hush hush \r\n"}, {"x-scope-orgid": "a|b", "x-key": "hush hush"}),
        ({"token": "eyJ.hush", "headers": "X-Scope-OrgID: b"}, TOKEN | {"x-scope-orgid": "b"}),
    ],
)
def test_who_asks_is_said_as_the_secret_has_it(
    serve: Serve, tmp_path: Path, files: dict[str, str], sent: dict[str, str]
) -> None:
    """As workers say it, who have the options alone; nothing of it is in a text that is made of them."""
    server = serve(lambda path, _: (200, {"status": "success", "data": []} if "label" in path else vector()))
    options = MetricsOptions(server.url, files=AccessFiles(secret(tmp_path / "s", files), headers=(("X-A", "b"),)))
    settings = Settings.from_options({"url": server.url, "query": "up", **options.access()})
    settings.endpoint.query("up")
    settings.endpoint.label_values("broker", "up", 0, 1)
    assert [path for path, _ in server.asked] == ["/api/v1/query", "/api/v1/label/broker/values"]
    for headers in server.headers:
        assert headers.items() >= (sent | {"x-a": "b"}).items()
    for word in ("hush", "Basic", "Bearer", BASIC["authorization"].split()[1]):
        assert word not in repr(settings)


@pytest.mark.spec("REB-02")
@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"token": "hush\nhush"}, "has no token: one is a single word in ASCII"),
        ({"token": "hush\u2026"}, "has no token: one is a single word in ASCII"),
        ({"token": "\n"}, "has no token: it is empty"),
        ({"username": "me"}, "has one of username and password"),
        ({"password": "hush"}, "has one of username and password"),
        ({"username": "me:hush", "password": "hush"}, "has a colon"),
        ({"username": "me", "password": "hush\nhush"}, "more than one line"),
        ({"username": "me", "password": ""}, "is empty"),
        ({"username": "me", "password": "hush", "token": "hush"}, "who asks is one of them"),
        ({"headers": "A: b\nhush"}, "line 2 of .*headers is no header"),
        ({"headers": "A: hush\u2026"}, "line 1 of .*headers is no header"),
        ({"headers": "Content-Type: hush"}, "that a query has itself"),
        ({"headers": "A: hush\na: hush"}, "is given twice"),
        ({"headers": "Authorization: hush", "token": "hush"}, "is given twice"),
        ({"ca.crt": "hush"}, r"in .*ca\.crt there are no certificates"),
        ({"tls.key": "hush"}, r"has one of tls\.crt and tls\.key"),
        ({"tls.crt": "hush"}, r"has one of tls\.crt and tls\.key"),
        ({"tls.crt": "hush", "tls.key": "hush"}, r"tls\.crt and tls\.key are not a certificate and its key"),
        ({"key": "hush"}, "has none of the files token, username"),
    ],
)
def test_a_secret_that_cannot_be_meant_is_refused_and_not_told(
    tmp_path: Path, files: dict[str, str], told: str
) -> None:
    """Python's own error of a header with two lines would have the token in it."""
    with pytest.raises(PrometheusError, match=told) as refused:
        MetricsOptions("http://p", files=AccessFiles(secret(tmp_path / "s", files))).access()
    assert "hush" not in "".join(map(str, (refused.value, refused.value.__cause__, refused.value.__context__)))


@pytest.mark.spec("REB-02")
def test_a_key_with_a_password_or_of_another_certificate_is_refused(tmp_path: Path) -> None:
    """Nobody is asked for the password: OpenSSL would do so on the terminal."""
    ours = Authority(tmp_path)
    plain, other, locked = (ours.issue(name) for name in ("plain", "other", "locked"))
    ours.issue("locked", password="hush")
    for number, (key, certificate) in enumerate(((locked, locked), (other, plain))):
        files = {"tls.key": key.with_suffix(".key").read_text(), "tls.crt": certificate.with_suffix(".crt").read_text()}
        with pytest.raises(PrometheusError, match="without a password"):
            AccessFiles(secret(tmp_path / f"s{number}", files)).read()


@pytest.mark.spec("REB-02")
def test_what_is_replaced_in_the_secret_counts_from_the_next_look(serve: Serve, tmp_path: Path) -> None:
    allowed = ["Bearer one"]

    def answer(*_: object) -> Answer:
        if server.headers[-1].get("authorization") not in allowed:
            return 401, b"Unauthorized\n"
        return 200, {"status": "success", "data": {"resultType": "scalar", "result": [5000.5, "5000.5"]}}

    server, spark = serve(answer), cast(Any, None)
    folder = secret(tmp_path / "s", {"token": "one"})
    options = MetricsOptions(server.url, files=AccessFiles(folder))
    _Source(spark, options, None)
    allowed[:] = ["Bearer two"]
    with pytest.raises(PrometheusError, match=r"HTTP 401 Unauthorized \(who asks is said by --prometheus-secret"):
        _Source(spark, options, None)
    assert len(server.asked) == 2, "it is not tried again: accounts may be locked for that"
    (folder / "..data").rename(folder / "..old")
    (folder / "..data").mkdir()
    (folder / "..data/token").write_text("two\n")
    _Source(spark, options, None)


@pytest.mark.spec("REB-02")
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_told_and_neither_query_nor_token_go_elsewhere(serve: Serve, status: int) -> None:
    elsewhere = serve(lambda *_: (200, vector()))
    server = serve(lambda *_: (status, f"{elsewhere.url}/api/v1/query".encode()))
    endpoint = Endpoint(server.url, headers=(("Authorization", "Bearer secret"),), first_pause_s=0.001)
    with pytest.raises(PrometheusError, match=f"sends elsewhere: give the address {elsewhere.url}"):
        endpoint.query("up")
    with pytest.raises(PrometheusError, match="sends elsewhere"):
        endpoint.label_values("broker", "up", 0, 1)
    assert (len(server.asked), elsewhere.asked) == (2, [])


@pytest.mark.spec("REB-08")
def test_the_present_is_what_prometheus_says_it_is(serve: Serve) -> None:
    """A driver whose clock is late would take old samples for new ones; one that is ahead would find none."""

    def answer(_path: str, asked: dict[str, str]) -> Answer:
        if asked["query"] == "time()":
            return 200, {"status": "success", "data": {"resultType": "scalar", "result": [5000.5, "5000.5"]}}
        return 200, vector(({}, 9.0)) if "timestamp" in asked["query"] else vector()

    server, spark = serve(answer), cast(Any, None)
    source = _Source(spark, MetricsOptions(server.url), None)
    source.check_fresh()
    assert [parameters.get("time") for _, parameters in server.asked] == [None, "5000.500", "5000.500"]


@pytest.mark.spec("REB-08")
def test_one_broker_whose_samples_are_old_makes_the_metrics_stale(serve: Serve) -> None:
    ages = [20.0, 400.0]

    def answer(_path: str, asked: dict[str, str]) -> Answer:
        return 200, vector(({}, {"max": max, "min": min}[asked["query"][:3]](ages)))

    source = _Source(cast(Any, None), MetricsOptions(serve(answer).url), 5000.0)
    with pytest.raises(Refusal, match="400 s old, more than 180 s") as caught:
        source.check_fresh()
    assert caught.value.reason == "MetricsStale"


@pytest.mark.spec("REB-02")
def test_attempts_are_bounded_and_the_fault_is_told(serve: Serve) -> None:
    server = serve(lambda *_: (503, {"error": "overloaded"}))
    with pytest.raises(PrometheusError, match=r"overloaded.*3 attempts"):
        Endpoint(server.url, attempts=3, first_pause_s=0.001).query("up")
    assert len(server.asked) == 3


@pytest.mark.spec("REB-02")
@pytest.mark.parametrize(
    ("status", "document", "told", "timeout_s"),
    [
        (200, ENDLESS, "took longer than 0.1 s", 30.0),
        (200, STALLED, "timed out", 2.0),
        (503, STALLED, "HTTP 503 .*timed out", 2.0),
    ],
)
def test_an_answer_that_does_not_end_is_given_up(
    serve: Serve, status: int, document: object, told: str, timeout_s: float
) -> None:
    server = serve(lambda *_: (status, document))
    with pytest.raises(PrometheusError, match=f"{told}.*2 attempts"):
        Endpoint(server.url, timeout_s=timeout_s, answer_s=0.1, attempts=2, first_pause_s=0.001).query("up")
    assert len(server.asked) == 2


@pytest.mark.spec("REB-02")
def test_a_bad_query_is_not_tried_again(serve: Serve) -> None:
    server = serve(lambda *_: (400, {"status": "error", "error": "parse error"}))
    with pytest.raises(PrometheusError, match="parse error"):
        Endpoint(server.url).query("up{")
    assert len(server.asked) == 1


@pytest.mark.spec("REB-02")
@pytest.mark.parametrize(
    ("told", "says"),
    [({"warnings": ["a store did not answer"]}, "a store did not answer"), ({"isPartial": True}, "not all of its")],
)
def test_a_partial_answer_is_an_error(serve: Serve, told: dict[str, Any], says: str) -> None:
    server = serve(lambda *_: (200, vector() | told))
    with pytest.raises(PartialAnswerError, match=says):
        Endpoint(server.url).query("up")
    whole = serve(lambda *_: (200, vector() | {"isPartial": False, "warnings": []}))
    assert Endpoint(whole.url).query("up") == []


@pytest.mark.spec("REB-02")
def test_fewer_series_than_counted_is_an_error(serve: Serve) -> None:
    def answer(_: str, parameters: dict[str, str]) -> Answer:
        if parameters["query"].startswith("count("):
            return 200, vector(({}, 3))
        return 200, vector(({"topic": "a"}, 1), ({"topic": "b"}, 2))

    settings = Settings.from_options({"url": serve(answer).url, "query": "m", "labels": "topic"})
    with pytest.raises(PartialAnswerError, match="3 series were counted, 2"):
        list(read_split(settings, Split(plan_instant(settings, 1000.0))))


@pytest.mark.spec("REB-02")
def test_splits_by_label_and_time_stay_under_the_limits(serve: Serve) -> None:
    def answer(path: str, parameters: dict[str, str]) -> Answer:
        if path.endswith("/values"):
            return 200, {"status": "success", "data": ["2", "1"]}
        return 200, vector(({}, 100))

    server = serve(answer)
    settings = Settings.from_options(
        {"url": server.url, "query": "m{$selector}", "splitBy": "broker", "match": 'env="x"', "step": "1",
         "maxPoints": "1000", "maxSamples": "50000"}
    )  # fmt: skip
    asks = plan_range(settings, 0.0, 1999.0)
    each = {'m{env="x",broker="1"}', 'm{env="x",broker="2"}', 'm{env="x",broker=""}'}
    assert {ask.expression for ask in asks} == each, "with those that have no such label"
    times = sorted((ask.start_s, ask.end_s) for ask in asks if 'broker="1"' in ask.expression)
    assert times == [(0.0, 499.0), (500.0, 999.0), (1000.0, 1499.0), (1500.0, 1999.0)]
    assert all(ask.end_s is not None and (ask.end_s - ask.start_s + 1) * 100 <= 50_000 for ask in asks)


@pytest.mark.spec("REB-02", "REB-10")
def test_series_are_counted_side_by_side(serve: Serve) -> None:
    """One after another, those of eighty brokers took longer than there is between two looks."""
    together = threading.Barrier(3, timeout=20)

    def answer(path: str, parameters: dict[str, str]) -> Answer:
        if path.endswith("/values"):
            return 200, {"status": "success", "data": ["1", "2"]}
        together.wait()
        return 200, vector(({}, 1 if 'broker="1"' in parameters["query"] else 2))

    options = {"url": serve(answer).url, "query": "m{$selector}", "splitBy": "broker", "maxQueries": "3"}
    asks = plan_instant(Settings.from_options(options), 1000.0)
    assert [(ask.expression[2:-1], ask.series) for ask in asks] == [
        ('broker="1"', 1),
        ('broker="2"', 2),
        ('broker=""', 2),
    ]


@pytest.mark.spec("REB-02", "REB-04")
def test_what_is_asked_about_the_past_is_asked_of_brokers_that_are_gone_since(serve: Serve) -> None:
    def answer(path: str, parameters: dict[str, str]) -> Answer:
        if path.endswith("/values"):
            gone = ["9"] if float(parameters["start"]) <= 1_000.0 else []
            return 200, {"status": "success", "data": ["1", *gone]}
        return 200, vector(({}, 1))

    options = {"url": serve(answer).url, "query": "m{$selector} offset 1h", "splitBy": "broker"}
    for past, brokers in (({}, {"1", ""}), ({"past": "3900"}, {"1", "9", ""})):
        asks = plan_instant(Settings.from_options(options | past), 4_900.0)
        assert {ask.expression for ask in asks} == {f'm{{broker="{broker}"}} offset 1h' for broker in brokers}


@pytest.mark.spec("REB-02")
def test_arrow_batches_carry_labels_and_times(serve: Serve) -> None:
    rows = vector(({"topic": "a"}, 1.0), ({"other": "b"}, 2.0))
    settings = Settings.from_options({"url": serve(lambda *_: (200, rows)).url, "query": "m", "labels": "topic"})
    (batch,) = read_split(settings, Split([Ask("m", None, 1000.0)]))
    assert batch.to_pydict()["topic"] == ["a", None]
    assert batch.to_pydict()["value"] == [1.0, 2.0]
    assert [moment.timestamp() for moment in batch.to_pydict()["time"]] == [1000.0, 1000.0]


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="url"):
        Settings.from_options({"query": "m"})
    with pytest.raises(ValueError, match="selector"):
        Settings.from_options({"url": "http://x", "query": "m", "splitBy": "broker"})


@pytest.mark.spec("REB-01")
def test_a_stream_with_longer_steps_goes_on_from_where_shorter_ones_ended() -> None:
    """A checkpoint outlives a change of --interval."""
    readers = {step: PrometheusStreamReader(Settings.from_options(options(step)), options(step)) for step in (300, 600)}
    ended = readers[300].latestOffset()
    now_s = ended["step"] * 300
    assert now_s <= time.time() < now_s + 600
    later = readers[600].latestOffset(ended)
    assert 0 <= time.time() - later["step"] * 600 < 1_200
    assert readers[600].latestOffset(later) == later


@pytest.mark.spec("REB-01")
def test_a_stream_begins_at_the_same_step_when_spark_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it plans the first batch, after it has asked which step is the newest."""
    reader = PrometheusStreamReader(Settings.from_options(options(1)), options(1))
    begins, later_s = reader.initialOffset(), time.time() + 5
    monkeypatch.setattr(time, "time", lambda: later_s)
    assert reader.initialOffset() == begins
    assert reader.latestOffset(begins)["step"] >= begins["step"] + 5


def options(step: int) -> dict[str, str]:
    return {"url": "http://127.0.0.1:1", "query": "up", "step": str(step), "delay": "0"}
