"""What stands in for kubectl says which file is wrong before it asks any server."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.local.conftest import Api, Running

from ballast_cli import CommandError, kube
from ballast_cli.__main__ import load, main
from ballast_cli.kube_api import KubeApi
from ballast_cli.kube_files import documents
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
from ballast_cli.kube_files import documents
from ballast_cli.kube_api import KubeApi
from ballast_operator.kubeconfig import read_kubeconfig
assert open({str(config)!r}).encoding != "utf-8"
KubeApi.found({str(config)!r})
read_kubeconfig(Path({str(config)!r}))
for name in ({str(tmp_path / "one.yaml")!r}, "-"):
    print(ascii(list(documents([name]))))
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
    assert list(documents([str(tmp_path)])) == [obj]


def test_what_yaml_takes_for_a_date_or_a_time_stays_a_text(tmp_path: Path) -> None:
    """As kubectl reads it. A date was a traceback, `12:30` came as 750."""
    text = "kind: ConfigMap\ndata: {day: 2026-11-28, at: 2026-11-28T10:00:00Z, time: 12:30, 1: 0x10, x: 1.5}"
    (tmp_path / "one.yaml").write_text(text)
    (found,) = documents([str(tmp_path)])
    told = {"day": "2026-11-28", "at": "2026-11-28T10:00:00Z", "time": "12:30", "1": 16, "x": 1.5}
    assert found == {"kind": "ConfigMap", "data": told}


def test_what_is_merged_may_be_said_otherwise(tmp_path: Path) -> None:
    """A key that comes by `<<` is not there twice."""
    (tmp_path / "one.yaml").write_text("kind: ConfigMap\na: &a {x: 1, y: 2}\ndata: {<<: *a, x: 3}")
    (found,) = documents([str(tmp_path)])
    assert found["data"] == {"x": 3, "y": 2}


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
        ("kind: KafkaTopic\nspec: {replicas: 3}\nspec: {partitions: 6}", "the key 'spec' is there twice"),
        ('{"kind": "KafkaTopic", "spec": {"a": 1, "a": 2}}', "the key 'a' is there twice"),
        ("kind: ConfigMap\ndata: {x: .inf}", "JSON has no word for something in it"),
        ("kind: ConfigMap\ndata: {x: !!binary aGVsbG8=}", "JSON has no word for something in it"),
        ("kind: ConfigMap\ndata: !!set {x, y}", "JSON has no word for something in it"),
        ("kind: ConfigMap\ndata: &here {x: *here}", "JSON has no word for something in it"),
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


@pytest.mark.parametrize("given", ["</dev/null", "<&-"])
def test_where_nothing_comes_by_the_standard_input_it_is_told(given: str, tmp_path: Path) -> None:
    """One that was closed was a traceback."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "KUBECONFIG": str(kubeconfig(tmp_path))}
    command = ["sh", "-c", f'exec "$@" {given}', "sh", sys.executable, "-m", "ballast_cli", "apply", "-f", "-"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "ballast apply: nothing came by the standard input.\n")


def test_a_folder_of_folders_holds_nothing_but_with_r(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path)))
    folder = tmp_path / "manifests"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "topic.yaml").write_text("{apiVersion: v1, kind: KafkaTopic}")
    assert main(["apply", "-f", str(folder)]) == 2
    assert f"nothing is in {folder}; of a folder" in capsys.readouterr().err
    (found,) = documents([str(folder)], recursive=True)
    assert found == {"apiVersion": "v1", "kind": "KafkaTopic"}
    assert main(["apply", "-R", "-f", str(folder)]) == 2
    assert "ballast apply: cannot reach the Kubernetes API" in capsys.readouterr().err, "it has something to apply"


@pytest.mark.parametrize("command", ["apply", "delete", "get"])
def test_a_kustomization_is_sent_to_who_builds_it(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        load(command).parse(["-k", "manifests/base"])
    assert "kubectl kustomize manifests/base | ./ballast apply -f -" in capsys.readouterr().err


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_a_bundle_of_authorities_has_their_names_in_any_language(encoding: str, tmp_path: Path) -> None:
    certificate, _ = make_certificate()
    bundle = base64.b64encode(f"# Autorité\n{certificate}".encode(encoding)).decode()
    tls = KubeApi.found(str(kubeconfig(tmp_path, **{"certificate-authority-data": bundle}))).tls
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


@pytest.mark.parametrize(
    ("part", "holds", "says"),
    [
        ("cluster", {"server": None}, "'' is no server such as https://kubernetes:6443"),
        ("cluster", {"server": "kubernetes:6443"}, "'kubernetes:6443' is no server such as"),
        ("cluster", {"server": "https://kubernetes:64430000"}, "is no server such as"),
        (
            "cluster",
            {"proxy-url": "http://proxy:3128"},
            "the cluster one has proxy-url, which is understood by",
        ),
        ("cluster", {"tls-server-name": "other"}, "the cluster one has tls-server-name, which"),
        ("user", {"as": "somebody-else"}, "the user one has as, which"),
        ("user", {"exec": {"command": "login"}}, "the user one has exec, which"),
        ("user", {"tokenFile": "nowhere"}, "/nowhere cannot be read: No such file"),
        ("context", {"cluster": None}, "there is no cluster named None"),
        ("context", {"user": ["one"]}, "there is no user named ['one']"),
    ],
)
@pytest.mark.parametrize("command", [["status"], ["get", "pods"], ["operator"]])
def test_what_a_kubeconfig_has_and_nobody_here_understands_is_told(
    command: list[str], part: str, holds: dict[str, Any], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The one was a traceback; the other went to the server as somebody who was not meant."""
    path = kubeconfig(tmp_path)
    config = json.loads(path.read_text())
    config[f"{part}s"][0][part] |= holds
    path.write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(path))
    assert main(command) == 2
    told = capsys.readouterr().err
    assert says in told
    assert told.count("\n") == 1


def test_a_file_with_a_token_lies_beside_the_kubeconfig_that_names_it(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path)
    config = json.loads(path.read_text())
    config["users"][0]["user"] = {"tokenFile": "token"}
    path.write_text(json.dumps(config))
    (tmp_path / "token").write_text("secret\n")
    assert find_access(str(path)).bearer_token() == "secret"
    assert KubeApi.found(str(path)).headers == {"Authorization": "Bearer secret"}


def test_where_nobody_may_look_is_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the home of root is for others, who have been given his variables. A name that is too long stands for it."""
    denied = f"/{'d' * 300}"
    monkeypatch.setenv("HOME", denied)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    for command in ("get", "status", "operator"):
        assert main([command, *(["pods"] if command == "get" else [])]) == 2
        assert "no Kubernetes found: set KUBECONFIG" in capsys.readouterr().err
    (tmp_path / "up").mkdir()
    made = kubeconfig(tmp_path / "up")
    monkeypatch.setenv("BALLAST_HOME", str(tmp_path))
    for words in (["get", "pods"], ["status"]):
        assert main(words) == 2
        assert f"./ballast up has made this one: export KUBECONFIG={made}\n" in capsys.readouterr().err
    assert main(["get", "pods", "--kubeconfig", denied]) == 2
    assert f"{denied} cannot be read: File name too long" in capsys.readouterr().err
    assert main(["apply", "-f", denied, "--kubeconfig", str(kubeconfig(tmp_path))]) == 2
    assert f"cannot read {denied}: File name too long" in capsys.readouterr().err
    assert load("up").parse(["--data", denied]).data == Path(denied)


def test_of_several_kubeconfigs_the_first_that_is_there_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where somebody has put one more behind a variable that was empty."""
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    path = kubeconfig(tmp_path)
    for several in (f":{path}", f"{tmp_path / 'absent'}:{path}", f"{path}:{tmp_path / 'absent'}"):
        monkeypatch.setenv("KUBECONFIG", several)
        assert KubeApi.found().server.geturl() == "https://127.0.0.1:1"
        assert find_access().server == "https://127.0.0.1:1"
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'absent'}:{tmp_path / 'neither'}")
    with pytest.raises(CommandError, match="absent"):
        KubeApi.found()
    with pytest.raises(KubeconfigError, match="absent"):
        find_access()


@pytest.fixture
def maps(tmp_path: Path) -> Iterator[Api]:
    """Of an API with the ConfigMaps a and b, which is the one that KUBECONFIG names."""
    running = Running(tmp_path / "up")
    try:
        api = running.api()
        for name in ("a", "b"):
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
            api.post("/api/v1/namespaces/default/configmaps", body)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("KUBECONFIG", str(running.kubeconfig))
            yield api
    finally:
        running.close()


def test_one_that_is_not_there_does_not_stand_for_the_others(maps: Api, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing was deleted, and that was no failure; nothing was waited for, and that was success."""
    assert main(["get", "configmap", "a", "absent", "b"]) == 1
    told = capsys.readouterr()
    assert [line.split()[0] for line in told.out.splitlines()] == ["NAME", "a", "b"], "one table, as of kubectl"
    assert told.err == 'Error from server (NotFound): configmaps "absent" not found\n'
    assert main(["get", "configmap/absent", "configmap/b", "-o", "name"]) == 1
    assert capsys.readouterr().out == "configmap/b\n"
    assert main(["describe", "configmap", "absent", "b"]) == 1
    assert "name: b\n" in capsys.readouterr().out
    assert main(["wait", "--for=delete", "configmap/absent", "configmap/b", "--timeout=0.1s"]) == 1
    assert main(["delete", "configmap", "absent", "a", "--ignore-not-found"]) == 0
    assert main(["delete", "configmap", "a", "b"]) == 1
    assert maps.get("/api/v1/configmaps")["items"] == []


def test_what_is_deleted_is_told_as_kubectl_tells_it(maps: Api, capsys: pytest.CaptureFixture[str]) -> None:
    maps.post("/api/v1/namespaces", {"metadata": {"name": "passing"}})
    assert main(["delete", "configmap/a", "configmap/b", "--wait=false"]) == 0
    assert capsys.readouterr().out == "".join(f'configmap "{name}" deleted from default namespace\n' for name in "ab")
    assert main(["delete", "namespace", "passing"]) == 0
    assert capsys.readouterr().out == 'namespace "passing" deleted\n', "it is in none"


def test_a_type_that_is_not_there_is_answered_with_the_nearest(
    maps: Api, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["get", "configmpas"]) == 2
    assert 'have a resource type "configmpas". Did you mean configmaps?\n' in capsys.readouterr().err
    for body, lacks in (({"kind": "ConfigMap"}, "apiVersion"), ({"apiVersion": "v1"}, "kind")):
        (tmp_path / "one.json").write_text(json.dumps(body))
        for command in ("apply", "delete"):
            assert main([command, "-f", str(tmp_path / "one.json")]) == 2
            told = f"ballast {command}: a document has no {lacks}: it is not a Kubernetes resource.\n"
            assert capsys.readouterr().err == told


def test_what_cannot_be_applied_keeps_nothing_else_from_it(
    maps: Api, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the server refuses is told in its words, as kubectl does; what is no request at all, in ours."""
    good, refused = ({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}} for name in ("c", "C"))
    file = tmp_path / "some.yaml"
    for bodies, code in (([refused, good], 1), ([{"kind": "ConfigMap"}, refused, good], 2)):
        file.write_text("\n---\n".join(map(json.dumps, bodies)))
        assert main(["apply", "-f", str(file)]) == code
        told = capsys.readouterr()
        assert told.out.startswith("configmap/c ")
        begins = [" ".join(line.split()[:2]) for line in told.err.splitlines()]
        assert begins == (["Error from"] if code == 1 else ["ballast apply:", "Error from"])


def test_what_is_meant_may_be_said_by_its_file(maps: Api, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "two.yaml"
    bodies = [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}} for name in ("a", "b")]
    bodies.append({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}})
    file.write_text("\n---\n".join(map(json.dumps, bodies)))
    assert main(["get", "-f", str(file)]) == 0
    names = [line.split()[:1] for line in capsys.readouterr().out.splitlines()]
    assert names == [["NAME"], ["configmap/a"], ["configmap/b"], [], ["NAME"], ["namespace/default"]]
    assert main(["get", "-f", str(file), "-o", "name"]) == 0
    assert capsys.readouterr().out.split() == ["configmap/a", "configmap/b", "namespace/default"]
    assert main(["wait", "--for=jsonpath={.metadata.name}", "-f", str(file), "--timeout=45s"]) == 0
    assert capsys.readouterr().out.count("condition met") == 3
    assert main(["describe", "-f", str(file)]) == 0
    assert "name: default\n" in capsys.readouterr().out
    assert main(["get", "configmap", "-f", str(file)]) == 2
    assert "-f says all" in capsys.readouterr().err


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
        assert main(["delete", "configmap", "one", "--timeout=45s", *config]) == 0
    finally:
        running.close()
