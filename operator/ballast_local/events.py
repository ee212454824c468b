"""Converts events between core/v1, as which they are stored, and events.k8s.io/v1. PURE."""

from ballast_local.errors import Obj

# events.k8s.io name → core name, where they differ.
_NAMES = {
    "note": "message",
    "regarding": "involvedObject",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
_BACK = {core: newer for newer, core in _NAMES.items()}


def event_to_core(obj: Obj) -> Obj:
    result = {_NAMES.get(name, name): value for name, value in obj.items()}
    result["apiVersion"] = "v1"
    return result


def event_to_events(obj: Obj) -> Obj:
    result = {_BACK.get(name, name): value for name, value in obj.items()}
    result["apiVersion"] = "events.k8s.io/v1"
    return result
