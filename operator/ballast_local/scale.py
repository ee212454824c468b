"""The scale subresource: converts between objects and their Scale. PURE."""

from typing import Any

from ballast_local import jsonpath
from ballast_local.errors import Obj, bad_request
from ballast_local.resources import Resource


def _one(path: str | None, obj: Obj, default: Any) -> Any:
    found = jsonpath.path(path).find(obj) if path else []
    return found[0] if found and found[0] is not None else default


def scale_of(resource: Resource, obj: Obj) -> Obj:
    paths = resource.scale
    assert paths is not None
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    selector = _one(paths.label_selector, obj, "")
    if not resource.custom:
        labels = (obj["spec"].get("selector") or {}).get("matchLabels") or {}
        selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: value for key, value in obj["metadata"].items() if key in kept},
        "spec": {"replicas": _one(paths.spec_replicas, obj, 0)},
        "status": {"replicas": _one(paths.status_replicas, obj, 0)} | ({"selector": selector} if selector else {}),
    }


def with_replicas(resource: Resource, obj: Obj, scale: Obj) -> Obj:
    """Set the replica count of a Scale in the object."""
    assert resource.scale is not None
    replicas = (scale.get("spec") or {}).get("replicas", 0)
    if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 0:
        raise bad_request("spec.replicas must be a whole number that is not negative")
    *above, last = resource.scale.spec_replicas.removeprefix(".").split(".")  # these paths consist of names only
    node = obj
    for name in above:
        node = node.setdefault(name, {})
    node[last] = replicas
    version = (scale.get("metadata") or {}).get("resourceVersion")
    if version:
        obj["metadata"]["resourceVersion"] = version
    return obj
