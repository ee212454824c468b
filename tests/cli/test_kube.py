"""What stands in for kubectl says which file is wrong before it asks any server."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.local.conftest import Running

from ballast_cli import CommandError, kube
from ballast_cli.__main__ import load, main
from ballast_cli.kube import _documents
from ballast_cli.kube_api import KubeApi
from ballast_local.certificates import make_certificate
from ballast_operator.kubeconfig import KubeconfigError, find_access


def kubeconfig(folder: Path, **cluster: Any) -> Path:
    """Of a server that nobody asks."""
    config = {
        "clusters": [{"name": "one", "cluster": {"server": "https://127.0.0.1:1", **cluster}}],
        "contexts": [{"name": "one", "context": {"cluster": "one", "user": "one"}}],
        "users": [{"name": "one", "user": {"token": "t"}}],
        "current-context": "one",
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    return path


@pytest.mark.parametrize(
    "words",
    [
        ["get", "topics", "-n", "kafka", "orders"],
        ["get", "-n", "kafka", "topics", "orders"],
        ["wait", "topics", "--for=condition=Ready", "-n", "kafka", "orders", "--timeout=5s"],
        ["delete", "topics", "orders", "-n", "kafka"],
    ],
)
def test_options_may_stand_between_the_words(words: list[str]) -> None:
    args = load(words[0]).parse(words[1:])
    assert (args.what, args.namespace) == (["topics", "orders"], "kafka")


def test_files_are_utf_8_whatever_the_locale_is(tmp_path: Path) -> None:
    """They would come to the cluster with other letters, or not be read at all."""
    text = "kind: Größe\nmetadata: {name: 東京}"
    (tmp_path / "one.yaml").write_text(text, encoding="utf-8")
    config = kubeconfig(tmp_path)
    config.write_text(f"# größer\n{config.read_text()}", encoding="utf-8")
    asked = f"""
import io, sys
from pathlib import Path
from ballast_cli.kube import _documents
from ballast_cli.kube_api import KubeApi
from ballast_operator.kubeconfig import read_kubeconfig
assert open({str(config)!r}).encoding != "utf-8"
KubeApi({str(config)!r})
read_kubeconfig(Path({str(config)!r}))
for name in ({str(tmp_path / "one.yaml")!r}, "-"):
    print(ascii(list(_documents([name]))))
"""
    foreign = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    done = subprocess.run(
        [sys.executable, "-c", asked], env=os.environ | foreign | {"PYTHONPATH": os.pathsep.join(sys.path)},
        input=text.encode(), capture_output=True, check=False, timeout=60,
    )  # fmt: skip
    read = ascii([{"kind": "Größe", "metadata": {"name": "東京"}}])
    assert done.stdout.decode().splitlines() == [read, read], done.stderr.decode()


def test_json_may_be_indented_with_tabs(tmp_path: Path) -> None:
    """As kubectl takes it, and as many programs write it."""
    obj = {"kind": "KafkaTopic", "metadata": {"name": "orders"}}
    (tmp_path / "topic.json").write_text(json.dumps(obj, indent="\t"))
    assert list(_documents([str(tmp_path)])) == [obj]


@pytest.mark.parametrize("command", ["apply", "delete"])
@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("just words", "something that is no object"),
        ("- a\n- b", "something that is no object"),
        ("kind: List\nitems: {a: b}", "something that is no object"),
        ("kind: List\nitems: [a]", "something that is no object"),
        ("a: b: c", "is no YAML"),
        ("\xff", "is no YAML"),
        ("---\n", "nothing is in"),
        (None, "No such file or directory."),
    ],
)
def test_a_file_that_holds_no_object_is_named(
    command: str, content: str | None, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path)))
    path = tmp_path / "file.yaml"
    if content is not None:
        path.write_bytes(content.encode("latin-1"))
    assert main([command, "-f", str(path)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"ballast {command}: ")
    assert says in told
    assert told.count(str(path)) == 1


def test_a_folder_of_folders_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path)))
    folder = tmp_path / "manifests"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "topic.yaml").write_text("kind: KafkaTopic")
    assert main(["apply", "-f", str(folder)]) == 2
    assert f"nothing is in {folder}; of a folder" in capsys.readouterr().err


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_a_bundle_of_authorities_has_their_names_in_any_language(encoding: str, tmp_path: Path) -> None:
    certificate, _ = make_certificate()
    bundle = base64.b64encode(f"# Autorité\n{certificate}".encode(encoding)).decode()
    tls = KubeApi(str(kubeconfig(tmp_path, **{"certificate-authority-data": bundle}))).tls
    assert tls is not None
    assert len(tls.get_ca_certs()) == 1


@pytest.mark.parametrize(
    ("cluster", "says"),
    [
        (
            {"certificate-authority-data": base64.b64encode(b"no certificate").decode()},
            "something that is no certificate",
        ),
        ({"certificate-authority-data": "not base64"}, "is not base64"),
        ({"certificate-authority": "nowhere.crt"}, "nowhere.crt, which "),
    ],
)
def test_certificates_that_are_not_there_are_told(
    cluster: dict[str, str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["get", "pods", "--kubeconfig", str(kubeconfig(tmp_path, **cluster))]) == 2
    told = capsys.readouterr().err
    assert says in told
    assert told.count("\n") == 1


def test_of_several_kubeconfigs_the_first_that_is_there_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where somebody has put one more behind a variable that was empty."""
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    path = kubeconfig(tmp_path)
    for several in (f":{path}", f"{tmp_path / 'absent'}:{path}", f"{path}:{tmp_path / 'absent'}"):
        monkeypatch.setenv("KUBECONFIG", several)
        assert KubeApi().server.geturl() == "https://127.0.0.1:1"
        assert find_access().server == "https://127.0.0.1:1"
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'absent'}:{tmp_path / 'neither'}")
    with pytest.raises(CommandError, match="absent"):
        KubeApi()
    with pytest.raises(KubeconfigError, match="absent"):
        find_access()


@pytest.mark.spec("OPR-40")
def test_what_is_made_anew_at_once_has_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a StatefulSet makes a pod: between two looks there is no moment without one of that name."""

    class Kept(KubeApi):
        def call(self, method: str, path: str, *rest: Any, **options: Any) -> Any:
            answer = super().call(method, path, *rest, **options)
            if method == "DELETE":
                super().call("POST", path.rpartition("/")[0], body=body)
            return answer

    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}}
    monkeypatch.setattr(kube, "KubeApi", Kept)
    running = Running(tmp_path)
    try:
        running.api().post("/api/v1/namespaces/default/configmaps", body)
        config = ["--kubeconfig", str(tmp_path / "kubeconfig")]
        assert main(["delete", "configmap", "one", "--timeout=1s", *config]) == 0
    finally:
        running.close()
