"""Pods as processes, and the controllers that make them."""

import os
import socket
import urllib.request
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.local.conftest import STRATEGIC, Api, Refused, Running
from tests.waiting import eventually

from ballast_local.builtin_checks import NODE_PORTS

SERVE = (
    "import os,http.server,sys\n"
    "class H(http.server.BaseHTTPRequestHandler):\n"
    "  def do_GET(self):\n"
    "    ok = not os.path.exists('/scratch/sick')\n"
    "    self.send_response(200 if ok else 500); self.end_headers()\n"
    "    self.wfile.write(os.environ['POD_NAME'].encode())\n"
    "  def log_message(self, *a): pass\n"
    "print('serving', flush=True)\n"
    "http.server.ThreadingHTTPServer((os.environ['POD_IP'], 8080), H).serve_forever()\n"
)


def env(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def server_spec(**more: Any) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "none",
        "command": ["python3", "-c", SERVE],
        "env": [env("POD_IP", "status.podIP"), env("POD_NAME", "metadata.name")],
        "ports": [{"name": "http", "containerPort": 8080}],
        "readinessProbe": {"httpGet": {"port": "http"}, "periodSeconds": 1, "failureThreshold": 1},
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
    } | more
    volumes = [{"name": "scratch", "emptyDir": {}}]
    return {"terminationGracePeriodSeconds": 5, "containers": [container], "volumes": volumes}


def script(text: str, **more: Any) -> dict[str, Any]:
    return {"name": "main", "image": "none", "command": ["sh", "-c", text], **more}


def pod(name: str, container: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"restartPolicy": "Never", "containers": [container], **spec}}


def condition(obj: dict[str, Any], kind: str) -> str:
    held = obj.get("status", {}).get("conditions") or []
    return next((one["status"] for one in held if one["type"] == kind), "")


def phase(api: Api, path: str, wanted: str) -> dict[str, Any]:
    def check() -> dict[str, Any] | None:
        found = api.get(path)
        return found if found["status"].get("phase") == wanted else None

    return eventually(check)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def log(api: Api, pods: str, name: str, query: str = "") -> str:
    return api.raw("GET", f"{pods}/{name}/log?{query}")[1].decode()


def test_a_pod_sees_its_environment_volumes_and_names(api: Api, namespace: str, pods: str) -> None:
    base = f"/api/v1/namespaces/{namespace}"
    api.post(f"{base}/configmaps", {"metadata": {"name": "c"}, "data": {"f.conf": "dir=/data/x\n", "key": "from-map"}})
    api.post(f"{base}/secrets", {"metadata": {"name": "s"}, "stringData": {"password": "hush"}})
    api.post(f"{base}/services", {"metadata": {"name": "web"}, "spec": {"clusterIP": "None", "ports": []}})
    container = script(
        'cat /etc/c/f.conf /run/s/password; echo; echo "$A|$B|$C|$D|$E|$0|$1"; echo kept > /data/x/file; ls /data/x',
        args=["/data/x", "me.web.$(NS).svc"],
        env=[
            env("NS", "metadata.namespace"),
            env("IP", "status.podIP"),
            {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "key"}}},
            {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "password"}}},
            {"name": "C", "value": "$(A)-$(UNKNOWN)-$$(A)"},
            {"name": "D", "value": "$(IP)"},
            {"name": "E", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['l']"}}},
        ],
        volumeMounts=[
            {"name": "c", "mountPath": "/etc/c"},
            {"name": "s", "mountPath": "/run/s"},
            {"name": "d", "mountPath": "/data/x"},
        ],
    )
    volumes = [{"name": "c", "configMap": {"name": "c"}}, {"name": "s", "secret": {"secretName": "s"}},
               {"name": "d", "emptyDir": {}}]  # fmt: skip
    body = pod("me", container, volumes=volumes)
    body["metadata"]["labels"] = {"l": "label"}
    api.post(pods, body)
    done = phase(api, f"{pods}/me", "Succeeded")
    address = done["status"]["podIP"]
    config, secret, words, listing = log(api, pods, "me").splitlines()
    directory = config.removeprefix("dir=")
    assert directory.endswith("/volumes/d")
    assert secret == "hush"
    assert words == f"from-map|hush|from-map-$(UNKNOWN)-$(A)|{address}|label|{directory}|{address}"
    assert listing == "file"


def test_a_pod_reads_of_itself_in_files(api: Api, pods: str) -> None:
    items = [
        {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}},
        {"path": "memory", "resourceFieldRef": {"containerName": "main", "resource": "limits.memory"}},
    ]
    limits = {"resources": {"limits": {"memory": "64Mi"}}}
    container = script("cat /d/name /d/memory", volumeMounts=[{"name": "d", "mountPath": "/d"}], **limits)
    api.post(pods, pod("p", container, volumes=[{"name": "d", "downwardAPI": {"items": items}}]))
    phase(api, f"{pods}/p", "Succeeded")
    assert log(api, pods, "p") == "p64Mi"


def test_a_missing_source_is_waited_for(api: Api, namespace: str, pods: str) -> None:
    reference = {"configMapKeyRef": {"name": "late", "key": "k"}}
    api.post(pods, pod("p", script('echo "got $V"', env=[{"name": "V", "valueFrom": reference}])))

    def waiting() -> bool:
        (status,) = api.get(f"{pods}/p")["status"].get("containerStatuses") or [{}]
        return (status.get("state") or {}).get("waiting", {}).get("message") == 'configmap "late" not found'

    eventually(waiting)
    api.post(f"/api/v1/namespaces/{namespace}/configmaps", {"metadata": {"name": "late"}, "data": {"k": "it"}})
    phase(api, f"{pods}/p", "Succeeded")
    assert log(api, pods, "p") == "got it\n"


def test_a_failing_container_restarts_with_back_off(api: Api, pods: str) -> None:
    body = pod("p", script("echo run; exit 3"))
    body["spec"]["restartPolicy"] = "OnFailure"
    api.post(pods, body)

    def restarted() -> dict[str, Any] | None:
        (status,) = api.get(f"{pods}/p")["status"].get("containerStatuses") or [{}]
        return status if status.get("restartCount", 0) >= 2 else None

    status = eventually(restarted)
    assert status["lastState"]["terminated"]["exitCode"] == 3
    eventually(lambda: log(api, pods, "p", "previous=true") == "run\n")
    events = api.get(f"{pods.removesuffix('pods')}events")["items"]
    assert "BackOff" in {event["reason"] for event in events}


def test_readiness_follows_the_probe_and_liveness_restarts(running: Running, api: Api, pods: str) -> None:
    spec = server_spec(livenessProbe={"exec": {"command": ["sh", "-c", "test ! -e /scratch/dead"]}, "periodSeconds": 1,
                                      "failureThreshold": 1})  # fmt: skip
    api.post(pods, {"metadata": {"name": "p"}, "spec": spec})
    ready = eventually(lambda: condition(found := api.get(f"{pods}/p"), "Ready") == "True" and found)
    assert ready["status"]["containerStatuses"][0]["restartCount"] == 0
    scratch = running.data / "pods" / ready["metadata"]["uid"] / "volumes" / "scratch"
    (scratch / "sick").touch()
    eventually(lambda: condition(api.get(f"{pods}/p"), "Ready") == "False")
    (scratch / "sick").unlink()
    eventually(lambda: condition(api.get(f"{pods}/p"), "Ready") == "True")
    (scratch / "dead").touch()
    eventually(lambda: api.get(f"{pods}/p")["status"]["containerStatuses"][0]["restartCount"] >= 1)


def test_attempts_of_a_probe_begin_a_period_apart_however_long_they_take(running: Running, api: Api, pods: str) -> None:
    """As the kubelet's: one that nobody answers does not put the next one off."""
    text = "date +%s.%N >> $HOME/attempts; test $(wc -l < $HOME/attempts) = 1 || exec sleep 600"
    command = ["sh", "-c", text.replace("$", "$$")]
    probe = {"exec": {"command": command}, "periodSeconds": 1, "timeoutSeconds": 1}
    uid = api.post(pods, pod("p", script("exec sleep 600", readinessProbe=probe)))["metadata"]["uid"]
    told = running.data / "pods" / uid / "attempts"
    eventually(lambda: told.exists() and len(told.read_text().split()) >= 5)
    begun = [float(text) for text in told.read_text().split()][1:]
    assert min(after - before for before, after in pairwise(begun)) < 1.8
    api.delete(f"{pods}/p", {"gracePeriodSeconds": 0})


def test_a_terminating_pod_gets_its_grace_then_the_kill(api: Api, pods: str) -> None:
    api.post(pods, pod("kind", script("trap 'echo bye; exit 0' TERM; echo $$$$; while :; do sleep 0.05; done")))
    api.post(pods, pod("stubborn", script("trap '' TERM; echo $$$$; while :; do sleep 0.05; done")))
    pids = {name: int(eventually(partial(printed_number, api, pods, name)))
            for name in ("kind", "stubborn")}  # fmt: skip
    held = api.delete(f"{pods}/kind")
    assert held["metadata"]["deletionGracePeriodSeconds"] == 30
    api.delete(f"{pods}/stubborn", {"gracePeriodSeconds": 1})
    eventually(lambda: not api.exists(f"{pods}/kind") and not api.exists(f"{pods}/stubborn"))
    assert not any(alive(pid) for pid in pids.values())


def printed_number(api: Api, pods: str, name: str) -> str:
    text = log(api, pods, name).strip()
    return text if text.isdecimal() else ""


def stateful_set(replicas: int = 2, **spec: Any) -> dict[str, Any]:
    template = {"metadata": {"labels": {"app": "s"}}, "spec": server_spec()}
    template["spec"]["containers"][0]["volumeMounts"].append({"name": "data", "mountPath": "/data"})
    claim = {"metadata": {"name": "data"},
             "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}  # fmt: skip
    return {
        "metadata": {"name": "s"},
        "spec": {"replicas": replicas, "serviceName": "s", "selector": {"matchLabels": {"app": "s"}},
                 "template": template, "volumeClaimTemplates": [claim], **spec},
    }  # fmt: skip


def ready_names(api: Api, pods: str) -> list[str]:
    return sorted(one["metadata"]["name"] for one in api.get(pods)["items"] if condition(one, "Ready") == "True")


@pytest.mark.spec("OPR-41")
def test_a_stateful_set_scales_rolls_and_keeps_its_claims(api: Api, namespace: str, pods: str) -> None:
    sets = f"/apis/apps/v1/namespaces/{namespace}/statefulsets"
    claims = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
    api.post(sets, stateful_set(updateStrategy={"type": "OnDelete"}, podManagementPolicy="Parallel"))
    eventually(lambda: ready_names(api, pods) == ["s-0", "s-1"])
    assert api.get(sets + "/s")["status"]["readyReplicas"] == 2 or eventually(
        lambda: api.get(sets + "/s")["status"]["readyReplicas"] == 2
    )
    before = api.get(f"{pods}/s-1")
    assert [claim["status"]["phase"] for claim in api.get(claims)["items"]] == ["Bound", "Bound"]
    template = {"spec": {"template": {"metadata": {"annotations": {"new": "1"}}}}}
    api.patch(f"{sets}/s", template, STRATEGIC)
    status = eventually(lambda: (found := api.get(f"{sets}/s")["status"])["updatedReplicas"] == 0 and found)
    assert status["updateRevision"] != status["currentRevision"]
    assert api.get(f"{pods}/s-1")["metadata"]["uid"] == before["metadata"]["uid"], "OnDelete touches nothing"
    api.delete(f"{pods}/s-1")

    def renewed() -> bool:
        found = api.raw("GET", f"{pods}/s-1")
        return (
            found[0] == 200
            and before["metadata"]["uid"] not in found[1].decode()
            and ready_names(api, pods)[-1:] == ["s-1"]
        )

    eventually(renewed)
    after = api.get(f"{pods}/s-1")
    assert after["metadata"]["annotations"] == {"new": "1"}
    assert after["status"]["podIP"] == before["status"]["podIP"], "an address belongs to a name"
    api.patch(f"{sets}/s/scale", {"spec": {"replicas": 1}})
    eventually(lambda: [one["metadata"]["name"] for one in api.get(pods)["items"]] == ["s-0"])
    assert len(api.get(claims)["items"]) == 2, "claims stay"


@pytest.mark.spec("OPR-43")
def test_an_orphaned_pod_is_adopted_by_the_next_stateful_set(api: Api, namespace: str, pods: str) -> None:
    sets = f"/apis/apps/v1/namespaces/{namespace}/statefulsets"
    api.post(sets, stateful_set(1))
    eventually(lambda: ready_names(api, pods) == ["s-0"])
    before = api.get(f"{pods}/s-0")
    api.delete(f"{sets}/s", {"propagationPolicy": "Orphan"})
    assert "ownerReferences" not in api.get(f"{pods}/s-0")["metadata"]
    made = api.post(sets, stateful_set(1, updateStrategy={"type": "OnDelete"}))
    owners = eventually(lambda: api.get(f"{pods}/s-0")["metadata"].get("ownerReferences"))
    assert owners[0]["uid"] == made["metadata"]["uid"]
    assert api.get(f"{pods}/s-0")["metadata"]["uid"] == before["metadata"]["uid"]
    api.delete(f"{sets}/s")
    eventually(lambda: api.get(pods)["items"] == [])


@pytest.mark.spec("OPR-43", "OPR-45")
def test_an_orphaned_pod_that_ends_is_made_anew_by_the_next_stateful_set(api: Api, namespace: str, pods: str) -> None:
    """It was nobody's when it went, so that the set, which had found its name taken, was not told."""
    path = f"/apis/apps/v1/namespaces/{namespace}/statefulsets"
    api.post(path, stateful_set(1))
    eventually(lambda: ready_names(api, pods) == ["s-0"])
    api.delete(f"{path}/s", {"propagationPolicy": "Orphan"})
    eventually(lambda: not api.exists(f"{path}/s"))
    orphan = api.patch(f"{pods}/s-0", {"metadata": {"finalizers": ["test/held"]}})
    api.delete(f"{pods}/s-0")
    api.post(path, stateful_set(1))
    eventually(lambda: (api.get(f"{path}/s").get("status") or {}).get("observedGeneration") == 1)
    api.patch(f"{pods}/s-0", {"metadata": {"finalizers": None}})

    def is_made_anew() -> bool:
        """The one before is ready, too, until its process has ended."""
        found = next((pod for pod in api.get(pods)["items"] if pod["metadata"]["name"] == "s-0"), orphan)
        return bool(found["metadata"]["uid"] != orphan["metadata"]["uid"])

    eventually(is_made_anew)
    eventually(lambda: ready_names(api, pods) == ["s-0"])


@pytest.mark.spec("OPR-43")
def test_no_pod_is_made_behind_one_that_lacks_a_claim_of_the_templates(api: Api, namespace: str, pods: str) -> None:
    """As the real controller does it."""
    sets = f"/apis/apps/v1/namespaces/{namespace}/statefulsets"
    how = {"updateStrategy": {"type": "OnDelete"}, "podManagementPolicy": "Parallel"}
    api.post(sets, stateful_set(1, **how))
    eventually(lambda: ready_names(api, pods) == ["s-0"])
    api.delete(f"{sets}/s", {"propagationPolicy": "Orphan"})
    body = stateful_set(2, **how)
    (claim,) = body["spec"]["volumeClaimTemplates"]
    body["spec"]["volumeClaimTemplates"] = [claim, claim | {"metadata": {"name": "more"}}]
    api.post(sets, body)
    claims = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
    eventually(lambda: "more-s-0" in [one["metadata"]["name"] for one in api.get(claims)["items"]])
    assert [one["metadata"]["name"] for one in api.get(pods)["items"]] == ["s-0"]
    api.delete(f"{pods}/s-0")
    eventually(lambda: ready_names(api, pods) == ["s-0", "s-1"])


def test_ordered_pods_start_one_after_another(api: Api, namespace: str, pods: str) -> None:
    sets = f"/apis/apps/v1/namespaces/{namespace}/statefulsets"
    api.post(sets, stateful_set(3))
    eventually(lambda: ready_names(api, pods) == ["s-0", "s-1", "s-2"])
    starts = [one["status"]["containerStatuses"][0]["state"]["running"]["startedAt"] for one in api.get(pods)["items"]]
    assert starts == sorted(starts)
    with pytest.raises(Refused, match="are forbidden"):
        api.patch(f"{sets}/s", {"spec": {"serviceName": "other"}})


def test_services_have_endpoints_and_answer(api: Api, namespace: str, pods: str) -> None:
    services = f"/api/v1/namespaces/{namespace}/services"
    spec = {"type": "NodePort", "selector": {"app": "s"}, "ports": [{"port": 8080, "targetPort": "http"}]}
    api.post(services, {"metadata": {"name": "s"}, "spec": spec})
    body = {"metadata": {"name": "p", "labels": {"app": "s"}}, "spec": server_spec()}
    made = api.post(pods, body)

    def endpoints() -> bool:
        subsets = api.raw("GET", f"/api/v1/namespaces/{namespace}/endpoints/s")
        return subsets[0] == 200 and b'"addresses"' in subsets[1]

    eventually(endpoints)
    service = api.get(f"{services}/s")
    node_port = service["spec"]["ports"][0]["nodePort"]
    targets = [("127.0.0.1", node_port)]
    if made and service["spec"]["clusterIP"] != "127.0.0.1":
        targets.append((service["spec"]["clusterIP"], 8080))
    for host, port in targets:
        with urllib.request.urlopen(f"http://{host}:{port}/", timeout=5) as answer:
            assert answer.read() == b"p"
    slices = api.get(f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices")["items"]
    assert slices[0]["endpoints"][0]["conditions"]["ready"] is True
    api.delete(f"{services}/s")

    def closed() -> bool:
        try:
            socket.create_connection(("127.0.0.1", node_port), 1).close()
        except OSError:
            return True
        return False

    eventually(closed)


def test_a_port_that_is_named_is_told_of_each_pod_as_that_pod_has_it(api: Api, namespace: str, pods: str) -> None:
    """As of brokers while another port comes to one after the other; both were told with the first one's."""
    base = f"/api/v1/namespaces/{namespace}"
    slices = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
    spec = {"clusterIP": "None", "selector": {"app": "s"}, "ports": [{"port": 8080, "targetPort": "http"}]}
    api.post(f"{base}/services", {"metadata": {"name": "s"}, "spec": spec})
    for name, port in (("a", 8080), ("b", 8081), ("c", 8081)):
        container = script("exec sleep 1000", ports=[{"name": "http", "containerPort": port}])
        made = pod(name, container, terminationGracePeriodSeconds=0)
        api.post(pods, made | {"metadata": {"name": name, "labels": {"app": "s"}}})

    def told() -> list[tuple[list[int], list[str]]]:
        return sorted(
            ([port["port"] for port in one["ports"]], sorted(e["targetRef"]["name"] for e in one["endpoints"]))
            for one in api.get(slices)["items"]
        )

    def subsets() -> list[tuple[list[int], list[str]]]:
        return [
            ([port["port"] for port in one["ports"]], sorted(a["targetRef"]["name"] for a in one["addresses"]))
            for one in api.get(f"{base}/endpoints/s")["subsets"]
        ]

    eventually(lambda: told() == [([8080], ["a"]), ([8081], ["b", "c"])])
    assert subsets() == [([8080], ["a"]), ([8081], ["b", "c"])]
    api.delete(f"{pods}/a")
    eventually(lambda: told() == [([8081], ["b", "c"])])
    assert subsets() == [([8081], ["b", "c"])]


def test_a_node_port_that_another_program_has_is_served_when_it_is_free(api: Api, namespace: str) -> None:
    with free_node_port() as other:
        port = other.getsockname()[1]
        spec = {"type": "NodePort", "selector": {"app": "s"}, "ports": [{"port": 80, "nodePort": port}]}
        api.post(f"/api/v1/namespaces/{namespace}/services", {"metadata": {"name": "s"}, "spec": spec})
        query = "fieldSelector=reason%3DFailedListen"
        eventually(lambda: api.get(f"/api/v1/namespaces/{namespace}/events?{query}")["items"])

    def served() -> bool:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            return False
        return True

    eventually(served)


def free_node_port() -> socket.socket:
    for port in NODE_PORTS:
        try:
            return socket.create_server(("127.0.0.1", port))
        except OSError:
            continue
    raise AssertionError("no port is free")


def test_a_deployment_rolls_from_one_template_to_the_next(api: Api, namespace: str, pods: str) -> None:
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    pod_spec = {"terminationGracePeriodSeconds": 1, "containers": [script("sleep 600")]}
    template = {"metadata": {"labels": {"app": "d"}}, "spec": pod_spec}
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "d"}}, "template": template}
    api.post(path, {"metadata": {"name": "d"}, "spec": spec})
    eventually(lambda: api.get(f"{path}/d").get("status", {}).get("availableReplicas") == 2)
    first = {one["metadata"]["uid"] for one in api.get(pods)["items"]}
    api.patch(f"{path}/d", {"spec": {"template": {"metadata": {"annotations": {"v": "2"}}}}}, STRATEGIC)

    def rolled() -> bool:
        found = api.get(f"{path}/d")
        status = found["status"]
        return status.get("updatedReplicas") == status.get("replicas") == status.get("readyReplicas") == 2 and (
            status["observedGeneration"] == found["metadata"]["generation"]
        )

    eventually(rolled)
    eventually(lambda: len(api.get(pods)["items"]) == 2)
    assert not first & {one["metadata"]["uid"] for one in api.get(pods)["items"]}
    api.delete(f"{path}/d")
    eventually(lambda: api.get(pods)["items"] == [])


def job(name: str, text: str, **spec: Any) -> dict[str, Any]:
    template = {"spec": {"restartPolicy": "Never", "containers": [script(text)]}}
    return {"metadata": {"name": name}, "spec": {"template": template, **spec}}


def test_jobs_complete_fail_and_expire(api: Api, namespace: str, pods: str) -> None:
    path = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    api.post(path, job("good", "echo done", completions=3, parallelism=2))
    api.post(path, job("bad", "exit 1", backoffLimit=0))
    api.post(path, job("slow", "sleep 600", activeDeadlineSeconds=1))
    api.post(path, job("gone", "true", ttlSecondsAfterFinished=1))
    good = eventually(lambda: condition(found := api.get(f"{path}/good"), "Complete") == "True" and found)
    assert good["status"]["succeeded"] == 3
    bad = eventually(lambda: condition(found := api.get(f"{path}/bad"), "Failed") == "True" and found)
    assert bad["status"]["conditions"][0]["reason"] == "BackoffLimitExceeded"
    slow = eventually(lambda: condition(found := api.get(f"{path}/slow"), "Failed") == "True" and found)
    assert slow["status"]["conditions"][0]["reason"] == "DeadlineExceeded"
    eventually(lambda: not api.exists(f"{path}/gone"))


def test_claims_grow_are_protected_and_take_their_data_along(
    running: Running, api: Api, namespace: str, pods: str
) -> None:
    claims = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    api.post(claims, {"metadata": {"name": "c"}, "spec": spec})
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "c"}}
    mounts = [{"name": "v", "mountPath": "/v"}]
    api.post(pods, pod("p", script("echo x > /v/f; sleep 600", volumeMounts=mounts), volumes=[volume],
                       terminationGracePeriodSeconds=1))  # fmt: skip
    directory = running.data / "volumes" / namespace / "c"
    eventually((directory / "f").exists)
    api.patch(f"{claims}/c", {"spec": {"resources": {"requests": {"storage": "2Gi"}}}})
    eventually(lambda: api.get(f"{claims}/c")["status"].get("capacity") == {"storage": "2Gi"})
    with pytest.raises(Refused, match="can not be less than previous value"):
        api.patch(f"{claims}/c", {"spec": {"resources": {"requests": {"storage": "1Gi"}}}})
    api.delete(f"{claims}/c")
    assert api.get(f"{claims}/c")["metadata"]["deletionTimestamp"], "held while a pod uses it"
    api.delete(f"{pods}/p")
    eventually(lambda: not api.exists(f"{claims}/c"))
    eventually(lambda: not directory.exists())


def test_a_mounted_config_map_follows_its_changes(api: Api, namespace: str, pods: str) -> None:
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    api.post(maps, {"metadata": {"name": "c"}, "data": {"f": "one"}})
    mounts = [{"name": "c", "mountPath": "/c"}]
    text = "while ! grep -q two /c/f; do sleep 0.05; done; echo seen"
    api.post(pods, pod("p", script(text, volumeMounts=mounts), volumes=[{"name": "c", "configMap": {"name": "c"}}]))
    phase(api, f"{pods}/p", "Running")
    api.patch(f"{maps}/c", {"data": {"f": "two"}})
    phase(api, f"{pods}/p", "Succeeded")
    assert log(api, pods, "p") == "seen\n"


def test_init_containers_come_first(api: Api, pods: str) -> None:
    volume = {"name": "v", "emptyDir": {}}
    mounts = [{"name": "v", "mountPath": "/v"}]
    first = script("echo first > /v/f", volumeMounts=mounts) | {"name": "init"}
    api.post(pods, pod("p", script("cat /v/f", volumeMounts=mounts), volumes=[volume], initContainers=[first]))
    phase(api, f"{pods}/p", "Succeeded")
    assert log(api, pods, "p", "container=main&tailLines=1") == "first\n"


def test_a_failed_init_container_is_shown(api: Api, pods: str) -> None:
    api.post(pods, pod("p", script("true"), initContainers=[script("exit 1") | {"name": "init"}]))
    phase(api, f"{pods}/p", "Failed")
    table = api.get(f"{pods}/p", Accept="application/json;as=Table;g=meta.k8s.io;v=v1")
    assert "Init:Error" in table["rows"][0]["cells"]


def test_what_no_process_can_be_given_is_told(api: Api, pods: str) -> None:
    api.post(pods, pod("p", script("true", env=[{"name": "A", "value": "a\0b"}])))
    ended = phase(api, f"{pods}/p", "Failed")["status"]["containerStatuses"][0]["state"]["terminated"]
    assert ended["reason"] == "StartError"
    assert ended["message"]


def test_a_disruption_budget_counts(api: Api, namespace: str, pods: str) -> None:
    budgets = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
    api.post(pods, {"metadata": {"name": "p", "labels": {"app": "b"}}, "spec": server_spec()})
    api.post(
        budgets, {"metadata": {"name": "b"}, "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "b"}}}}
    )
    eventually(lambda: api.get(f"{budgets}/b").get("status", {}).get("disruptionsAllowed") == 1)


def test_an_eviction_asks_the_budget(api: Api, namespace: str, pods: str) -> None:
    budgets = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
    api.post(pods, {"metadata": {"name": "p", "labels": {"app": "b"}}, "spec": server_spec()})
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "b"}}}
    api.post(budgets, {"metadata": {"name": "b"}, "spec": spec})
    eventually(lambda: api.get(f"{budgets}/b").get("status", {}).get("currentHealthy") == 1)
    with pytest.raises(Refused, match="disruption budget") as refused:
        api.post(f"{pods}/p/eviction", {"metadata": {"name": "p"}})
    assert refused.value.code == 429
    api.patch(f"{budgets}/b", {"spec": {"minAvailable": 0}})
    eventually(lambda: api.get(f"{budgets}/b")["status"]["disruptionsAllowed"] == 1)
    api.post(f"{pods}/p/eviction", {"metadata": {"name": "p"}})
    eventually(lambda: not api.exists(f"{pods}/p"))
