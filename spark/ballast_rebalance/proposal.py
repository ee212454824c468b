"""Turns a plan into a proposal: a Reassignment that waits for approval, in Kubernetes or as YAML in a Git working tree.

At most one proposal of this job is open per cluster. An older one that is not approved is superseded, but only if the
new one is notably better or the older no longer fits: sizes change with every look, and people need time to read a plan
before they approve it. One that is approved or runs stays, and nothing new is proposed beside it (REB-08). Driver only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import yaml

from ballast_planner import (
    ClusterLoad,
    Plan,
    PlanOptions,
    ResourceOptions,
    plan_explicit,
    plan_hash,
    reassignment_resources,
    rows_from_resource,
)
from ballast_rebalance.measured import Measured, Refusal
from ballast_rebalance.worth import Threshold

CREATED_BY = {"app.kubernetes.io/created-by": "ballast-rebalance"}
ENDED = frozenset({"Succeeded", "Failed", "Cancelled", "RolledBack", "Stale"})
UNDECIDED = frozenset({"", "Planning", "AwaitingApproval"})


@dataclass(frozen=True)
class ProposalOptions:
    """The parts of a proposal besides its moves."""

    cluster: str
    namespace: str = "default"
    inter_broker_throttle: str | None = None
    intra_broker_throttle: str | None = None
    expires_after: timedelta = timedelta(hours=24)


class Older(NamedTuple):
    """An earlier proposal; `config_maps` has, by name, the ConfigMaps with its rows, if it is large."""

    resource: Mapping[str, Any]
    config_maps: Mapping[str, Mapping[str, Any]]


IsKept = Callable[[Older], bool]


class ProposalStore(Protocol):
    """Reassignments and KafkaTopics of one namespace, as the Kubernetes API keeps them."""

    def pinned_topics(self, cluster: str) -> frozenset[str]: ...
    def list_reassignments(self) -> list[dict[str, Any]]: ...
    def read_plan(self, config_map: str) -> Mapping[str, Any] | None: ...
    def create(self, resource: Mapping[str, Any]) -> dict[str, Any]: ...
    def create_plan(self, config_map: Mapping[str, Any]) -> None: ...
    def own(self, config_map: str, owner: Mapping[str, Any]) -> None: ...
    def delete_unchanged(self, resource: Mapping[str, Any]) -> bool: ...


def build(plan: Plan, measured: Measured, options: ProposalOptions, planning: PlanOptions) -> list[dict[str, Any]]:
    """The resources of a proposal, the Reassignment last."""
    if not measured.order_known:
        raise Refusal(
            "OrderUnknown",
            "the order of the assignments is not in the metrics, so exact moves cannot be named; "
            "export ballast_replica_position or give --bootstrap as well",
        )
    quality, bounds = plan.quality, plan.bounds
    assert quality is not None
    assert bounds is not None
    input_time = datetime.fromtimestamp(int(measured.at_s), UTC)
    annotations = {
        "ballast.dev/fill-highest": f"{quality.before.highest:.4f} -> {quality.after.highest:.4f}",
        "ballast.dev/fill-spread": f"{quality.before.spread:.4f} -> {quality.after.spread:.4f}",
        "ballast.dev/out-of-band": f"{quality.before.out_of_band} -> {quality.after.out_of_band}",
        "ballast.dev/bytes": f"{quality.bytes_network} network, {quality.bytes_disk} disk, bound {bounds.bytes_total}",
        "ballast.dev/band": f"{planning.band:g}",
    }
    if quality.on_more_racks:
        annotations["ballast.dev/on-more-racks"] = str(quality.on_more_racks)
    return reassignment_resources(
        plan,
        ResourceOptions(
            name=proposal_name(options.cluster, plan),
            namespace=options.namespace,
            cluster=options.cluster,
            inter_broker_throttle=options.inter_broker_throttle,
            intra_broker_throttle=options.intra_broker_throttle,
            expires_at=_timestamp(input_time + options.expires_after),
            input_time=_timestamp(input_time),
            labels=CREATED_BY,
            annotations=annotations,
        ),
    )


def proposal_name(cluster: str, plan: Plan) -> str:
    """Derived from the plan, so that the same plan is the same object."""
    return f"{cluster[:40].rstrip('-.')}-rebalance-{plan_hash(plan)[:10]}"


def as_good(
    older: Older,
    load: ClusterLoad,
    plan: Plan,
    planning: PlanOptions,
    threshold: Threshold,
    now: str,
    present: ClusterLoad | None = None,
) -> bool:
    """Whether an older proposal still fits, and levels this load nearly as well as `plan`, which was made for it.

    If the load is a forecast, `present` is the cluster as it is: an approved plan must find room in that.
    """
    if str(older.resource["spec"].get("expiresAt", now)) < now:
        return False
    try:
        rows = rows_from_resource(older.resource, older.config_maps)
        again = plan_explicit(load, rows, planning)
        unplaced = again.unplaced or (present is not None and plan_explicit(present, rows, planning).unplaced)
    except ValueError:  # rows that cannot be read, or no longer carried out
        return False
    if unplaced or not planning.excluded_topics.isdisjoint(row.topic for row in rows):
        return False
    assert again.quality is not None
    assert plan.quality is not None
    was, would_be = again.quality.after, plan.quality.after
    lost = max(was.highest - would_be.highest, was.spread - would_be.spread)
    repairs, more = again.quality.on_more_racks, plan.quality.on_more_racks
    return lost < threshold.min_improvement and more - repairs <= threshold.min_improvement * more


def superseded_files(
    resources: Sequence[Mapping[str, Any]], directory: Path, is_kept: IsKept | None = None
) -> list[Path]:
    """Older, unapproved files of this job for the cluster. Raises Refusal if one of them is kept."""
    resource = resources[-1]
    path = _file(resource, directory)
    older = [old for old in sorted(directory.glob("*-rebalance-*.yaml")) if old != path and _superseded(old, resource)]
    for old in older:
        if is_kept is not None and all(map(is_kept, _older_in(old))):
            raise Refusal("AlreadyProposed", f"{old} waits for approval and is as good as what was found now")
    return older


def require_carried_out(resource: Mapping[str, Any], directory: Path, load: ClusterLoad) -> None:
    """Raises Refusal if a file of this job for the cluster is approved and its moves are not done yet.

    The files do not show whether one has failed: it stands in the way until it expires or is removed.
    """
    for path in sorted(directory.glob("*-rebalance-*.yaml")):
        for older in _older_in(path):
            spec = older.resource["spec"]
            if not _is_of(older.resource, resource) or not _approved(older.resource):
                continue
            if spec.get("cancel"):
                if path == _file(resource, directory):
                    raise Refusal("AlreadyProposed", f"{path} has this plan, cancelled: remove it to have it proposed")
                continue
            if str(spec.get("expiresAt", "")) >= resource["spec"]["inputTime"] and _has_moves_left(older, load):
                raise Refusal(
                    "ReassignmentInProgress",
                    f"{path} is approved, and its moves are not done yet; if they failed, remove it",
                )


def _has_moves_left(older: Older, load: ClusterLoad) -> bool:
    """False if the rows are stale: their replicas are elsewhere by now, so the moves will not come."""
    try:
        return bool(plan_explicit(load, rows_from_resource(older.resource, older.config_maps)).moves)
    except ValueError:
        return False


def write_yaml(resources: Sequence[Mapping[str, Any]], directory: Path) -> Path:
    """Write one file into the working tree, in place of the superseded ones.

    If the same plan is found again, its file stays as it is unless it has expired: as its moves are still to be made,
    nobody approved it, or too late.
    """
    resource = resources[-1]
    directory.mkdir(parents=True, exist_ok=True)
    path = _file(resource, directory)
    older = superseded_files(resources, directory)
    if not path.exists() or _expired(path, resource):
        text = yaml.safe_dump_all([dict(item) for item in resources], sort_keys=False, width=120)
        temporary = path.with_suffix(".yaml.tmp")
        temporary.write_text(text, encoding="utf-8")
        temporary.rename(path)
    for old in older:
        old.unlink()
    return path


def _file(resource: Mapping[str, Any], directory: Path) -> Path:
    return directory / f"{resource['metadata']['name']}.yaml"


def submit(
    resources: Sequence[Mapping[str, Any]],
    store: ProposalStore,
    is_kept: IsKept | None = None,
) -> str:
    """Create the proposal; returns its name. Raises Refusal if another one must end first, or is kept."""
    resource = resources[-1]
    in_the_way = []
    for other in store.list_reassignments():
        if other["spec"]["clusterRef"] != resource["spec"]["clusterRef"]:
            continue
        phase = other.get("status", {}).get("phase", "")
        name = other["metadata"]["name"]
        same = name == resource["metadata"]["name"]
        if phase in ENDED:
            # The same plan, found again after it ended: the old object still has the name.
            in_the_way += [other] if same else []
            continue
        if same:
            raise Refusal("AlreadyProposed", f"the same plan is proposed already, as {name}")
        if not _is_ours(other) or _approved(other) or phase not in UNDECIDED:
            if (why := _stalled(other)) is not None:
                raise Refusal(
                    "ReassignmentStalled", f"{name} gets no further and stands in the way of a new plan: {why}"
                )
            raise Refusal("ReassignmentInProgress", f"{name} is {phase or 'new'}; a new plan waits for its end")
        if is_kept is not None and is_kept(_older(other, store)):
            raise Refusal("AlreadyProposed", f"{name} waits for approval and is as good as what was found now")
        in_the_way.append(other)
    for other in in_the_way:
        if not store.delete_unchanged(other):
            raise Refusal(
                "ReassignmentInProgress",
                f"{other['metadata']['name']} was changed just now, perhaps approved; ask again",
            )
    for item in resources[:-1]:
        store.create_plan(item)
    created = store.create(resource)
    for item in resources[:-1]:
        store.own(item["metadata"]["name"], created)
    return str(resource["metadata"]["name"])


def approve_command(resource: Mapping[str, Any]) -> str:
    """What a person types to approve exactly this plan."""
    metadata, digest = resource["metadata"], resource["spec"]["planHash"]
    return (
        f"kubectl -n {metadata['namespace']} patch reassignment {metadata['name']} --type merge "
        f'-p \'{{"spec":{{"approvedPlan":"{digest}"}}}}\''
    )


def _is_ours(resource: Mapping[str, Any]) -> bool:
    labels = resource["metadata"].get("labels") or {}
    return all(labels.get(key) == value for key, value in CREATED_BY.items())


def _approved(resource: Mapping[str, Any]) -> bool:
    """Whether somebody has named its plan, or it no longer requires approval."""
    return bool(resource["spec"].get("approvedPlan")) or resource["spec"].get("approval") != "Required"


def _stalled(resource: Mapping[str, Any]) -> str | None:
    """Why it needs somebody's help, in the operator's words; None if it does not."""
    conditions = resource.get("status", {}).get("conditions", ())
    return next((one["message"] for one in conditions if one["type"] == "Stalled" and one["status"] == "True"), None)


def _older(resource: Mapping[str, Any], store: ProposalStore) -> Older:
    names = [source["configMapRef"]["name"] for source in resource["spec"].get("planFrom", ())]
    return Older(resource, {name: found for name in names if (found := store.read_plan(name)) is not None})


def _older_in(path: Path) -> list[Older]:
    maps = {item["metadata"]["name"]: item for item in _documents(path, "ConfigMap")}
    return [Older(item, maps) for item in _documents(path, "Reassignment")]


class _Loader(yaml.SafeLoader):
    """Reads timestamps as text, as Kubernetes does: in a file that people edit they may be without quotes."""


_Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda _, node: node.value)


def _documents(path: Path, kind: str) -> list[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
        documents = [item for item in yaml.load_all(text, Loader=_Loader) if isinstance(item, dict)]
    except (yaml.YAMLError, UnicodeDecodeError):
        return []
    return [item for item in documents if item.get("kind") == kind]


def _expired(path: Path, by: Mapping[str, Any]) -> bool:
    found, at = _documents(path, "Reassignment"), by["spec"]["inputTime"]
    return bool(found) and all(_is_of(item, by) and str(item["spec"].get("expiresAt", at)) < at for item in found)


def _superseded(path: Path, by: Mapping[str, Any]) -> bool:
    found = _documents(path, "Reassignment")
    return bool(found) and all(_is_of(item, by) and not _approved(item) for item in found)


def _is_of(resource: Mapping[str, Any], by: Mapping[str, Any]) -> bool:
    """Whether this job made it for the same cluster."""
    return (
        _is_ours(resource)
        and resource["spec"].get("clusterRef") == by["spec"]["clusterRef"]
        and resource["metadata"].get("namespace") == by["metadata"]["namespace"]
    )


def _timestamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
