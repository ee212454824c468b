"""Creates what every cluster has from the start: namespaces, one node, a storage class, default service accounts."""

import os
import platform

from ballast_local import meta
from ballast_local.errors import ApiError, Obj
from ballast_local.objects import Objects, Options
from ballast_local.resources import Registry
from ballast_local.store import Change, Store

NODE = "local"
_OPTIONS = Options(manager="ballast-local")


def _node() -> Obj:
    capacity = {"cpu": str(os.cpu_count() or 1), "memory": f"{_memory_bytes()}", "pods": "1000"}
    now = meta.now()
    labels = {"kubernetes.io/hostname": NODE, "kubernetes.io/os": platform.system().lower()}
    return {
        "metadata": {"name": NODE, "labels": labels},
        "spec": {},
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": NODE}],
            "conditions": [
                {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "pods run as local processes",
                 "lastHeartbeatTime": now, "lastTransitionTime": now}
            ],
            "nodeInfo": _node_info(),
        },
    }  # fmt: skip


def _node_info() -> Obj:
    system = platform.uname()
    info = {
        "architecture": system.machine,
        "containerRuntimeVersion": "process://1",
        "kernelVersion": system.release,
        "kubeletVersion": "v1.34.0+ballast",
        "operatingSystem": system.system.lower(),
        "osImage": platform.platform(),
    }
    return info | dict.fromkeys(("bootID", "kubeProxyVersion", "machineID", "systemUUID"), "")


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def create_defaults(objects: Objects, registry: Registry, store: Store) -> None:
    def make(group: str, version: str, plural: str, namespace: str, obj: Obj) -> None:
        resource = registry.find(group, version, plural)
        assert resource is not None
        if store.get(resource.key, namespace, obj["metadata"]["name"]) is None:
            objects.create(resource, namespace, obj, _OPTIONS)

    def account(namespace: str) -> None:
        make("", "v1", "serviceaccounts", namespace, {"metadata": {"name": "default"}})

    def namespace_changed(change: Change) -> None:
        if change.kind != "DELETED" and not meta.is_deleting(change.entry.object()):
            try:
                account(change.entry.name)
            except ApiError:
                return

    for name in ("default", "kube-system", "kube-public"):
        make("", "v1", "namespaces", "", {"metadata": {"name": name}})
        account(name)
    store.listen("namespaces.", namespace_changed)
    make("", "v1", "nodes", "", _node())
    annotations = {"storageclass.kubernetes.io/is-default-class": "true"}
    standard: Obj = {
        "metadata": {"name": "standard", "annotations": annotations},
        "provisioner": "ballast.dev/directory",
        "allowVolumeExpansion": True,
    }
    make("storage.k8s.io", "v1", "storageclasses", "", standard)
    service: Obj = {
        "metadata": {"name": "kubernetes", "labels": {"component": "apiserver", "provider": "kubernetes"}},
        "spec": {"clusterIP": "127.0.0.1", "ports": [{"name": "https", "port": 443}]},
    }
    make("", "v1", "services", "default", service)
