"""Builds the discovery documents of groups, versions and resources, plain and aggregated. PURE."""

from ballast_local.errors import Obj
from ballast_local.resources import VERBS, Registry, Resource

_EXTRA: dict[str, tuple[tuple[str, str, str, tuple[str, ...]], ...]] = {
    "pods.": (("log", "Pod", "v1", ("get",)), ("eviction", "Eviction", "policy/v1", ("create",))),
}


def _subresources(row: Resource) -> list[tuple[str, str, str, tuple[str, ...]]]:
    """(subresource, kind, group/version of the kind, verbs)"""
    found: list[tuple[str, str, str, tuple[str, ...]]] = []
    if row.status:
        found.append(("status", row.kind, row.api_version, ("get", "patch", "update")))
    if row.scale:
        found.append(("scale", "Scale", "autoscaling/v1", ("get", "patch", "update")))
    found += list(_EXTRA.get(row.key, ()))
    return found


def _verbs(row: Resource) -> list[str]:
    return list(VERBS) if row.stored else ["create"]


def version_document() -> Obj:
    return {
        "major": "1",
        "minor": "34",
        "gitVersion": "v1.34.0+ballast",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "2025-01-01T00:00:00Z",
        "goVersion": "none",
        "compiler": "python",
        "platform": "any",
    }


def core_versions() -> Obj:
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def _group(name: str, versions: list[str]) -> Obj:
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def group_document(registry: Registry, name: str) -> Obj | None:
    versions = registry.groups().get(name)
    if not versions:
        return None
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(name, versions)}


def group_list(registry: Registry) -> Obj:
    groups = [_group(name, versions) for name, versions in registry.groups().items() if name]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def resource_list(registry: Registry, group: str, version: str) -> Obj | None:
    rows = registry.rows(group, version)
    if not rows:
        return None
    resources: list[Obj] = []
    for row in rows:
        one: Obj = {
            "name": row.plural,
            "singularName": row.singular,
            "namespaced": row.namespaced,
            "kind": row.kind,
            "verbs": _verbs(row),
        }
        if row.short_names:
            one["shortNames"] = list(row.short_names)
        if row.categories:
            one["categories"] = list(row.categories)
        resources.append(one)
        for name, kind, api_version, verbs in _subresources(row):
            kind_group, _, kind_version = api_version.rpartition("/")
            sub: Obj = {"name": f"{row.plural}/{name}", "singularName": "", "namespaced": row.namespaced, "kind": kind,
                        "verbs": list(verbs)}  # fmt: skip
            if name in ("scale", "eviction"):
                sub |= {"group": kind_group, "version": kind_version}
            resources.append(sub)
    group_version = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources}


def aggregated(registry: Registry, core: bool, api_version: str) -> Obj:
    """The single document that newer clients request instead of a list per group and version."""
    items: list[Obj] = []
    for group, versions in registry.groups().items():
        if bool(group) is core:
            continue
        listed = [
            {
                "version": version,
                "freshness": "Current",
                "resources": [_aggregated(row) for row in registry.rows(group, version)],
            }
            for version in versions
        ]
        metadata = {"name": group, "creationTimestamp": None} if group else {"creationTimestamp": None}
        items.append({"metadata": metadata, "versions": listed})
    return {"kind": "APIGroupDiscoveryList", "apiVersion": api_version, "metadata": {}, "items": items}


def _kind(kind: str, api_version: str) -> Obj:
    group, _, version = api_version.rpartition("/")
    return {"group": group, "version": version, "kind": kind}


def _aggregated(row: Resource) -> Obj:
    one: Obj = {
        "resource": row.plural,
        "responseKind": _kind(row.kind, row.api_version),
        "scope": "Namespaced" if row.namespaced else "Cluster",
        "singularResource": row.singular,
        "verbs": _verbs(row),
    }
    if row.short_names:
        one["shortNames"] = list(row.short_names)
    if row.categories:
        one["categories"] = list(row.categories)
    subresources = [
        {"subresource": name, "responseKind": _kind(kind, api_version), "verbs": list(verbs)}
        for name, kind, api_version, verbs in _subresources(row)
    ]
    if subresources:
        one["subresources"] = subresources
    return one
