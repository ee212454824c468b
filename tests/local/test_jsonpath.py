"""JSONPath of `get` and `wait`: what kubectl gives for the same words."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from e2e.kubernetes.binaries import kubectl as kubectl_program

from ballast_cli import CommandError
from ballast_cli.__main__ import load
from ballast_local import jsonpath

KUBECTL = kubectl_program()
POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "a-0", "generation": 2, "labels": {"ballast.dev/cluster": "größe"}},
    "spec": {"containers": [{"name": "one", "ports": [{"containerPort": 1}, {"containerPort": 22}]}, {"name": "two"}]},
    "status": {
        "phase": "Running",
        "conditions": [
            {"type": "Ready", "status": "True", "message": "all = well"},
            {"type": "Odd", "status": "False"},
        ],
    },
}
CASES = [
    ("{.status.phase}", "Running"),
    ("phase: {.status.phase}{'\\n'}", "phase: Running\n"),
    (".status.phase", ".status.phase"),
    ("{.nope.nothing}", ""),
    ("{.spec.containers[*].name}", "one two"),
    ("{.spec.containers[0].ports[1].containerPort}", "22"),
    ("{.spec.containers[-1:].name}", "two"),
    ("{.spec.containers[0,1].name}", "one two"),
    ("{.spec.containers[0:2:2].name}", "one"),
    ("{..containerPort}", "1 22"),
    ("{.metadata.labels.ballast\\.dev/cluster}", "größe"),
    ("{.metadata.labels['ballast\\.dev/cluster']}", "größe"),
    ("{.metadata['name','generation']}", "a-0 2"),
    ('{.status.conditions[?(@.type=="Ready")].message}', "all = well"),
    ("{.status.conditions[?(@.type!='Ready')].status}", "False"),
    ("{.status.conditions[?(@.message)].type}", "Ready"),
    ("{.spec.containers[0].ports[?(@.containerPort>1)].containerPort}", "22"),
    ("{range .status.conditions[*]}{.type}={.status};{end}", "Ready=True;Odd=False;"),
    ("{range .spec.containers[*]}{.name}:{range .ports[*]}{.containerPort},{end}{end}", "one:1,22,two:"),
    ("{.spec.containers[0].ports[0]}", '{"containerPort":1}'),
    ("{$.kind} {@.kind}", "Pod Pod"),
]


@pytest.mark.parametrize(("text", "gives"), CASES)
def test_a_template_gives_what_kubectl_gives(text: str, gives: str) -> None:
    assert jsonpath.rendered(jsonpath.template(text), POD) == gives


@pytest.mark.kubernetes
@pytest.mark.skipif(not KUBECTL, reason="no kubectl is built, none is named")
@pytest.mark.parametrize(("text", "gives"), CASES)
def test_kubectl_itself_gives_that(text: str, gives: str, tmp_path: Path) -> None:
    """Of a file, so that no server is asked."""
    (tmp_path / "pod.json").write_text(json.dumps(POD))
    command = [KUBECTL, "patch", "--local", "--type=merge", "-p={}", f"-f={tmp_path}/pod.json", f"-o=jsonpath={text}"]
    told = subprocess.run(command, env={"HOME": str(tmp_path)}, capture_output=True, text=True, timeout=30, check=True)
    assert told.stdout == gives


@pytest.mark.parametrize(
    "text", ["{.a", "{range .a}{.b}", "{end}", "{.a[x]}", "{.a..}", "{a}", "{.a[?(@.b]}", "{.a b}", "{}", "{.a.[}"]
)
def test_what_is_no_template_is_refused_before_anything_is_asked(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="is no JSONPath"):
        jsonpath.template(text)
    with pytest.raises(SystemExit, match="2"):
        load("get").parse(["pods", "-o", f"jsonpath={text}"])
    assert "is no JSONPath" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("goal", "met"),
    [
        ("jsonpath={.status.phase}=Running", True),
        ("jsonpath=status.phase=Running", True),
        ("jsonpath={.status.phase}='Running'", True),
        ("jsonpath={.status.phase}=Pending", False),
        ("jsonpath={.status.phase}", True),
        ("jsonpath={.status.reason}", False),
        ("jsonpath={.metadata.generation}=2", True),
        ('jsonpath={.status.conditions[?(@.type=="Ready")].status}=True', True),
        ('jsonpath={.status.conditions[?(@.type=="Ready")].message}=all = well', True),
        ("condition=ready", True),
        ("condition=Odd", False),
        ("condition=odd=false", True),
    ],
)
def test_a_goal_of_wait_is_met_or_not(goal: str, met: bool) -> None:
    assert load("wait").parse(["pod/a-0", f"--for={goal}"]).goal.met(POD) is met


@pytest.mark.parametrize(
    ("path", "says"), [("{.spec.containers[*].name}", "more than one value"), ("{.spec}", "an object or a list")]
)
def test_a_goal_that_is_no_single_value_is_not_waited_for(path: str, says: str) -> None:
    with pytest.raises(CommandError, match=says):
        load("wait").parse(["pod/a-0", f"--for=jsonpath={path}=x"]).goal.met(POD)


@pytest.mark.parametrize("goal", ["", "jsonpath", "jsonpath=", "jsonpath={.a}=", "jsonpath={.a", "condition=", "delet"])
def test_a_goal_that_cannot_be_is_refused_before_anything_is_asked(goal: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        load("wait").parse(["pod/a-0", f"--for={goal}"])
