"""Examples are accepted by the API as they stand; bases name what exists; rules cover what the operator asks for."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ballast_cli.up import PLURALS_APPLIED, Stack
from ballast_operator.apply.kubernetes import ApiError, KubernetesApi, path_of
from ballast_operator.kubeconfig import read_kubeconfig
from ballast_operator.model.meta import API_VERSION

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "manifests"


def load(path: Path) -> list[dict[str, Any]]:
    return [body for body in yaml.safe_load_all(path.read_text()) if body]


@pytest.mark.spec("OPR-01")
def test_every_example_is_accepted_by_the_schemas_and_rules(tmp_path: Path) -> None:
    async def scenario() -> list[str]:
        stack = Stack(tmp_path)
        applied = []
        try:
            kubeconfig = await stack._local.start(tmp_path)
            stack.api = KubernetesApi(read_kubeconfig(kubeconfig))
            await stack._apply_crds()
            for file in sorted((MANIFESTS / "examples").glob("*.yaml"), key=lambda path: path.stem):
                for body in load(file):
                    await stack.apply(body)
                    applied.append(body["kind"])
        finally:
            await stack.stop()
        return applied

    assert set(asyncio.run(scenario())) == {"KafkaCluster", "KafkaTopic", "Reassignment"}


def test_kustomizations_name_files_that_exist() -> None:
    for file in [*MANIFESTS.rglob("kustomization.yaml"), ROOT / "crds" / "kustomization.yaml"]:
        for resource in load(file)[0].get("resources", ()):
            assert (file.parent / resource).exists(), f"{file}: {resource}"


def test_the_crds_that_up_applies_are_those_of_the_kustomization() -> None:
    listed = load(ROOT / "crds" / "kustomization.yaml")[0]["resources"]
    assert sorted(listed) == sorted(f"{plural}.yaml" for plural in PLURALS_APPLIED)


@pytest.mark.spec("OPR-02")
def test_items_of_lists_have_no_defaults() -> None:
    """Argo CD, where it does not apply on the server's side, compares lists as wholes: what is filled in would be a
    difference from Git for ever."""

    def inside(schema: dict[str, Any], path: str) -> list[str]:
        below = {f"{path}.{name}": node for name, node in schema.get("properties", {}).items()}
        below |= {f"{path}[]": schema["items"]} if "items" in schema else {}
        return [path] * ("[]" in path and "default" in schema) + [
            found for name, node in below.items() for found in inside(node, name)
        ]

    for plural in PLURALS_APPLIED:
        (definition,) = load(ROOT / "crds" / f"{plural}.yaml")
        assert inside(definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"], plural) == []


@pytest.mark.spec("OPR-01")
def test_the_usual_key_of_planfrom_may_be_left_out_where_it_was_filled_in(tmp_path: Path) -> None:
    """As it was by definitions of before: what Git has of such an object is applied as ever."""

    def body(**key: str) -> dict[str, Any]:
        spec = {"clusterRef": {"name": "demo"}, "planFrom": [{"configMapRef": {"name": "plan"}, **key}]}
        return {"apiVersion": API_VERSION, "kind": "Reassignment", "metadata": {"name": "big"}, "spec": spec}

    async def scenario() -> None:
        stack = Stack(tmp_path)
        try:
            stack.api = KubernetesApi(read_kubeconfig(await stack._local.start(tmp_path)))
            await stack._apply_crds()
            await stack.apply(body(key="partitions.json"))
            await stack.apply(body())
            with pytest.raises(ApiError, match="planFrom cannot be changed"):
                await stack.apply(body(key="another.json"))
        finally:
            await stack.stop()

    asyncio.run(scenario())


@pytest.mark.spec("OPR-07")
def test_the_role_covers_every_kind_that_the_sources_name_and_nothing_of_the_whole_cluster() -> None:
    role = load(MANIFESTS / "base" / "role.yaml")[0]
    assert role["kind"] == "Role"
    allowed = {resource for rule in role["rules"] for resource in rule["resources"]}
    nodes = load(MANIFESTS / "racks" / "cluster-role.yaml")[0]
    assert nodes["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]
    assert not any("*" in (*rule["resources"], *rule["verbs"], *rule["apiGroups"]) for rule in role["rules"])
    sources = "\n".join(path.read_text() for path in (ROOT / "operator" / "ballast_operator").rglob("*.py"))
    named = set(re.findall(r'path_of\("[\w./]+", "(\w+)"', sources)) | set(
        re.findall(r'\("[\w./]+", "(\w+s)"\),$', sources, re.M)
    )
    assert {"pods", "statefulsets", "configmaps", "leases", "events", "secrets", "poddisruptionbudgets"} <= named
    assert named - {"nodes"} <= allowed


@pytest.mark.spec("OPR-07")
def test_the_operators_own_pod_passes_the_restricted_standard() -> None:
    spec = load(MANIFESTS / "base" / "deployment.yaml")[0]["spec"]["template"]["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    for container in spec["containers"]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]


def test_paths_of_objects() -> None:
    assert path_of("v1", "pods", "default", "p") == "/api/v1/namespaces/default/pods/p"
    assert path_of("apps/v1", "statefulsets", None) == "/apis/apps/v1/statefulsets"
