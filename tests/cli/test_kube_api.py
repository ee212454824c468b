"""The commands' own Kubernetes client and servers that die, or cannot answer just now."""

from __future__ import annotations

import json
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ballast_cli import CommandError, kube_api
from ballast_cli.kube_api import KubeApi, Refused


@contextmanager
def server_that_says(answer: bytes | list[bytes], folder: Path, pause: float = 0.0) -> Iterator[KubeApi]:
    """It answers one request with exactly that, with pauses between its pieces, and is gone; clients ask it to close
    the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                for piece in answer if isinstance(answer, list) else [answer]:
                    connection.sendall(piece)
                    select.select([connection], [], [], pause)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        config = {
            "clusters": [{"name": "one", "cluster": {"server": f"http://127.0.0.1:{listening.getsockname()[1]}"}}],
            "contexts": [{"name": "one", "context": {"cluster": "one", "user": "one"}}],
            "users": [{"name": "one", "user": {"token": "t"}}],
            "current-context": "one",
        }
        (folder / "kubeconfig").write_text(json.dumps(config))
        yield KubeApi.found(str(folder / "kubeconfig"))
        thread.join()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 100\r\n\r\n{",
        b"HTTP/1.1 500 Internal Server Error\r\nConnection: close\r\nContent-Length: 100\r\n\r\n{",
    ],
)
def test_a_server_that_dies_before_or_within_its_answer_cannot_be_reached(answer: bytes, tmp_path: Path) -> None:
    with server_that_says(answer, tmp_path) as api, pytest.raises(CommandError, match="cannot reach") as raised:
        api.call("GET", "/version")
    assert not isinstance(raised.value, Refused)


@pytest.mark.parametrize("body", [b"<html>Sign in</html>", b"[1, 2, 3]"])
def test_what_is_no_kubernetes_is_told(body: bytes, tmp_path: Path) -> None:
    """Where a proxy or another server has the port."""
    answer = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    with server_that_says(answer, tmp_path) as api, pytest.raises(CommandError, match="is no Kubernetes API"):
        api.call("GET", "/version")


@pytest.mark.parametrize(("code", "transient"), [(403, False), (404, False), (409, False), (429, True), (503, True)])
def test_what_a_server_cannot_do_just_now_is_told_from_what_it_will_not_do(
    code: int, transient: bool, tmp_path: Path
) -> None:
    answer = f"HTTP/1.1 {code} No\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{{}}".encode()
    with server_that_says(answer, tmp_path) as api, pytest.raises(Refused) as raised:
        api.call("GET", "/version")
    assert raised.value.is_transient is transient


@pytest.mark.parametrize(
    "rest",
    [
        b'20\r\n{"type": "ADDED", "obj',  # a chunk that is cut off
        b'16\r\n{"type": "ADDED", "obj\r\n',  # a line that is
    ],
)
def test_a_watch_that_is_cut_off_is_a_sentence_and_no_traceback(rest: bytes, tmp_path: Path) -> None:
    event = b'{"type": "ADDED", "object": {}}\n'
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = head + b"%x\r\n" % len(event) + event + b"\r\n" + rest
    with server_that_says(answer, tmp_path) as api:
        events = api.watch("/apis/x", {})
        assert next(events)["type"] == "ADDED"
        with pytest.raises(CommandError, match="cannot reach"):
            next(events)


def test_a_watch_waits_for_as_long_as_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It used to end, as if nothing had been the matter, when there was no event for a minute."""
    monkeypatch.setattr(kube_api, "TIMEOUT_SECONDS", 0.1)
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/json\r\n\r\n"
    events = [f'{{"type": "{kind}", "object": {{}}}}\n'.encode() for kind in ("ADDED", "MODIFIED")]
    with server_that_says([head + events[0], events[1]], tmp_path, pause=0.5) as api:
        assert [event["type"] for event in api.watch("/apis/x", {})] == ["ADDED", "MODIFIED"]


def test_a_watch_that_is_refused_says_so(tmp_path: Path) -> None:
    answer = b"HTTP/1.1 403 No\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    with server_that_says(answer, tmp_path) as api, pytest.raises(Refused, match="Forbidden"):
        next(api.watch("/apis/x", {}))
