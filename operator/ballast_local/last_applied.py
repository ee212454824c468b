"""Migration from client-side `kubectl apply` to `--server-side`, by the last-applied annotation. PURE."""

import json

from ballast_local.apply_fields import owned_leaves
from ballast_local.errors import Obj
from ballast_local.field_sets import FieldSet
from ballast_local.field_types import FieldType

KUBECTL = "kubectl"
ANNOTATION = "kubectl.kubernetes.io/last-applied-configuration"


def yielding(live: Obj, kind: FieldType) -> FieldSet:
    """The fields that client-side apply has set and that still have these values: kubectl may take their ownership."""
    try:
        applied = json.loads((live["metadata"].get("annotations") or {})[ANNOTATION])
        wanted = owned_leaves(applied, kind)
    except (KeyError, ValueError, TypeError, AttributeError):
        return set()
    current = owned_leaves(live, kind)
    return {path for path, value in wanted.items() if path in current and current[path] == value}


def remember(new: Obj, config: Obj) -> None:
    """Update the annotation if it exists, so that a later client-side `kubectl apply` finds what was applied last."""
    annotations = new["metadata"].get("annotations") or {}
    if ANNOTATION not in annotations:
        return
    metadata = dict(config.get("metadata") or {})
    if "annotations" in metadata:
        metadata["annotations"] = {key: value for key, value in metadata["annotations"].items() if key != ANNOTATION}
    text = json.dumps(config | {"metadata": metadata}, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
    annotations[ANNOTATION] = text + "\n"
