"""What the provider kind asks of kind and docker, which are written down here in the place of the real ones."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest
from e2e.kubernetes.next_release import write_next_layer
from e2e.kubernetes.providers import Kind, ProviderError, image_name, running

from ballast_cli.image_contents import Flavour
from ballast_cli.places import ROOT

PROGRAM = """#!/bin/sh
echo "$(basename "$0") $*" >> "{log}"
case "$*" in
  "get clusters") cat "{clusters}" ;;
  "inspect "*) echo 172.18.0.2 ;;
  "create cluster "*) [ ! -e "{refusing}" ] ;;
esac
"""
CREATE = "kind create cluster --name ballast-e2e"
DELETE = "kind delete cluster --name ballast-e2e"
IMAGE = image_name()


class Machine:
    """What is on it, and what was asked of its programs so far."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "log"
        self.clusters = folder / "clusters"
        self.refusing = folder / "refusing"
        self.clusters.write_text("other\n")
        for name in ("kind", "docker", "kubectl"):
            (folder / name).write_text(PROGRAM.format(log=self._log, clusters=self.clusters, refusing=self.refusing))
            (folder / name).chmod(0o755)

    def asked(self, word: str) -> list[str]:
        return [line for line in self._log.read_text().splitlines() if word in line]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    for name in ("BALLAST_E2E_KIND_IMAGE", "BALLAST_E2E_BASE"):
        monkeypatch.delenv(name, raising=False)
    return Machine(tmp_path)


def test_from_the_image_to_the_node_and_nothing_stays(machine: Machine) -> None:
    with running(Kind(print)) as provider:
        assert (provider.image, provider.outside) == (IMAGE, "172.18.0.2")
        folder = provider.kubeconfig.parent
        following = provider.image_with("next", write_next_layer)
    dockerfile = Flavour.BROKER.dockerfile
    assert machine.asked("docker build")[0] == f"docker build --file {dockerfile} --tag {IMAGE} {ROOT}"
    assert machine.asked(CREATE) == [f"{CREATE} --kubeconfig {folder}/kubeconfig"]
    loaded = [line.split()[3] for line in machine.asked("kind load")]
    assert loaded == [IMAGE, following]
    assert machine.asked(DELETE) == [DELETE]
    assert machine.asked("docker image rm") == [f"docker image rm {IMAGE} {following}"]
    assert not folder.exists()


def test_behind_a_mirror_node_and_base_have_other_names(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BALLAST_E2E_KIND_IMAGE", "mirror/node:v1")
    monkeypatch.setenv("BALLAST_E2E_BASE", "mirror/python:3")
    with running(Kind(print)) as provider:
        provider.spark_image()
    assert [line.endswith(" --image mirror/node:v1") for line in machine.asked(CREATE)] == [True]
    builds = machine.asked("docker build")
    assert len(builds) == 2
    assert all(f" --build-arg BASE=mirror/python:3 {ROOT}" in line for line in builds)


def test_the_cluster_of_another_run_is_neither_used_nor_deleted(machine: Machine) -> None:
    machine.clusters.write_text("other\nballast-e2e\n")
    with pytest.raises(ProviderError, match=DELETE), running(Kind(print)):
        pytest.fail("it is another's")
    assert machine.asked("build") + machine.asked(CREATE) + machine.asked("delete") == []


def test_a_cluster_that_was_begun_is_deleted(machine: Machine) -> None:
    machine.refusing.touch()
    with pytest.raises(ProviderError, match="kind create cluster failed"), running(Kind(print)):
        pytest.fail("kind refused")
    assert machine.asked(DELETE) == [DELETE]


def test_what_is_only_prepared_stays(machine: Machine) -> None:
    provider = Kind(print)
    provider.prepare()
    provider.prepare_spark()
    provider.stop()
    assert [line.split()[5] for line in machine.asked("docker")] == [IMAGE, image_name(Flavour.SPARK)]
