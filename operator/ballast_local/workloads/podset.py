"""Shared by the controllers of pods: pods from templates, template hashes, adoption. PURE except for the client."""

import copy
import hashlib
import json
from collections.abc import Callable

from ballast_local import meta
from ballast_local.errors import ApiError, Obj
from ballast_local.selectors import selector_matches
from ballast_local.workloads.client import Client

_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"


def template_hash(template: Obj) -> str:
    digest = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).digest()
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in digest[:10])


def pod_from(template: Obj, owner: Obj, name: str = "", labels: dict[str, str] | None = None) -> Obj:
    metadata = copy.deepcopy(template.get("metadata") or {})
    metadata["labels"] = (metadata.get("labels") or {}) | (labels or {})
    metadata["ownerReferences"] = [meta.owner_reference(owner)]
    if name:
        metadata["name"] = name
    else:
        metadata["generateName"] = owner["metadata"]["name"] + "-"
    metadata = {key: value for key, value in metadata.items() if key not in ("creationTimestamp", "namespace")}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": copy.deepcopy(template["spec"])}


def settle_ownership(
    client: Client, owner: Obj, key: str = "pods.", fits: Callable[[str], bool] = lambda name: True
) -> list[Obj]:
    """Return the owner's objects, after adopting orphans that match its selector and whose names fit, and releasing
    objects that no longer match."""
    namespace, uid = owner["metadata"]["namespace"], owner["metadata"]["uid"]
    selector = owner["spec"]["selector"]
    found: list[Obj] = []
    for one in client.find(key, namespace):
        controller = meta.controller_of(one)
        matches = selector_matches(selector, one["metadata"].get("labels") or {})
        if controller is None:
            free = matches and fits(one["metadata"]["name"])
            if free and not meta.is_deleting(one) and not meta.is_deleting(owner):
                adopted = _adopt(client, owner, key, one)
                if adopted is not None:
                    found.append(adopted)
        elif controller["uid"] == uid:
            if matches:
                found.append(one)
            else:
                _release(client, uid, key, one)
    return found


def _adopt(client: Client, owner: Obj, key: str, obj: Obj) -> Obj | None:
    reference = meta.owner_reference(owner)

    def adopt(held: Obj) -> None:
        held["metadata"].setdefault("ownerReferences", []).append(reference)

    return client.change(key, obj["metadata"]["namespace"], obj["metadata"]["name"], adopt)


def _release(client: Client, uid: str, key: str, obj: Obj) -> None:
    def release(held: Obj) -> None:
        references = held["metadata"].get("ownerReferences") or []
        held["metadata"]["ownerReferences"] = [one for one in references if one["uid"] != uid]

    client.change(key, obj["metadata"]["namespace"], obj["metadata"]["name"], release)


def delete_pod(client: Client, owner: Obj, pod: Obj) -> None:
    metadata = pod["metadata"]
    client.delete("pods.", metadata["namespace"], metadata["name"], {"preconditions": {"uid": metadata["uid"]}})
    client.event(owner, "Normal", "SuccessfulDelete", f"delete Pod {metadata['name']} successful")


def create_pod(client: Client, owner: Obj, pod: Obj) -> Obj:
    try:
        made = client.create("pods.", owner["metadata"]["namespace"], pod)
    except ApiError as refusal:
        client.event(owner, "Warning", "FailedCreate", f"Error creating: {refusal.message}")
        raise
    client.event(owner, "Normal", "SuccessfulCreate", f"create Pod {made['metadata']['name']} successful")
    return made
