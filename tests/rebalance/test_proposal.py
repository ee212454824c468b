"""Proposals: one open per cluster, older ones superseded, approved ones left alone; YAML for Git; the report."""

from __future__ import annotations

import copy
import errno
import html.parser
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml
from tests.rebalance.test_measured import measured

from ballast_planner import (
    Broker,
    ClusterLoad,
    Directory,
    Plan,
    PlanOptions,
    Replica,
    plan_balance,
    plan_hash,
    spec_rows,
)
from ballast_rebalance import report
from ballast_rebalance.job import JobOptions, Outcome, _propose
from ballast_rebalance.measured import Measured, Refusal
from ballast_rebalance.proposal import Older, ProposalOptions, approve_command, as_good, build, submit, write_yaml
from ballast_rebalance.report_flow import flow_svg
from ballast_rebalance.worth import Threshold


class FakeStore:
    """Keeps resources as the API would; `conflicts` makes the next deletion find a changed object."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, Any]] = {}
        self.owned: dict[str, str] = {}
        self.conflicts = False

    def list_reassignments(self) -> list[dict[str, Any]]:
        return [copy.deepcopy(item) for item in self.kept.values() if item["kind"] == "Reassignment"]

    def pinned_topics(self, cluster: str) -> frozenset[str]:
        return frozenset()

    def read_plan(self, config_map: str) -> dict[str, Any] | None:
        return self.kept.get(config_map)

    def create(self, resource: Mapping[str, Any]) -> dict[str, Any]:
        name = resource["metadata"]["name"]
        assert name not in self.kept
        self.kept[name] = copy.deepcopy(dict(resource))
        return self.kept[name]

    def create_plan(self, config_map: Mapping[str, Any]) -> None:
        self.create(config_map)

    def own(self, config_map: str, owner: Mapping[str, Any]) -> None:
        self.owned[config_map] = owner["metadata"]["name"]

    def delete_unchanged(self, resource: Mapping[str, Any]) -> bool:
        if self.conflicts:
            return False
        del self.kept[resource["metadata"]["name"]]
        return True


def a_proposal(band: float = 0.10) -> tuple[Plan, Measured, list[dict[str, Any]]]:
    found, planning = measured(), PlanOptions(band=band)
    plan = plan_balance(found.load(), planning)
    return plan, found, build(plan, found, ProposalOptions("c", "ns", intra_broker_throttle="50Mi"), planning)


@pytest.mark.spec("REB-08")
def test_a_proposal_says_all_that_is_needed() -> None:
    plan, _, (resource,) = a_proposal()
    spec = resource["spec"]
    assert spec["approval"] == "Required"
    assert "approvedPlan" not in spec
    assert spec["planHash"] == plan_hash(plan)
    assert spec["inputTime"] == "2023-11-14T22:13:20Z"
    assert spec["expiresAt"] == "2023-11-15T22:13:20Z"
    assert spec["throttle"] == {"intraBroker": "50Mi"}
    assert plan_hash(plan) in approve_command(resource)


@pytest.mark.spec("REB-08")
def test_without_the_order_of_replicas_there_is_no_proposal() -> None:
    plan, found, _ = a_proposal()
    with pytest.raises(Refusal) as caught:
        build(plan, replace(found, order_known=False), ProposalOptions("c"), PlanOptions())
    assert caught.value.reason == "OrderUnknown"


@pytest.mark.spec("REB-08")
def test_an_unapproved_proposal_is_superseded() -> None:
    store = FakeStore()
    _, _, first = a_proposal()
    _, _, second = a_proposal(band=0.05)
    assert first[-1]["metadata"]["name"] != second[-1]["metadata"]["name"]
    submit(first, store)
    with pytest.raises(Refusal) as same:
        submit(first, store)
    assert same.value.reason == "AlreadyProposed"
    submit(second, store)
    assert list(store.kept) == [second[-1]["metadata"]["name"]]


def a_later_look(store: FakeStore, found: Measured, out: Path | None = None) -> Outcome | Refusal:
    """What the job does with what it has measured, an hour after the proposal was made."""
    later = replace(found, at_s=found.at_s + 3_600)
    load, options = later.load(), JobOptions(ProposalOptions("c", "ns", intra_broker_throttle="50Mi"), out=out)
    plan = plan_balance(load, options.planning)
    try:
        return _propose(options, later, load, plan, None if out else store)
    except Refusal as refusal:
        return refusal


@pytest.mark.spec("REB-08")
def test_a_proposal_stays_while_it_fits_and_is_as_good(tmp_path: Path) -> None:
    """Sizes change with every look and so does the best plan; who approves needs one that is there a while."""
    store = FakeStore()
    _, found, resources = a_proposal()
    name, size = submit(resources, store), found.replicas["size"]
    file = write_yaml(resources, tmp_path)
    drifted = replace(found, replicas=found.replicas.assign(size=size + found.replicas["partition"] % 7 * (1 << 20)))
    assert plan_hash(plan_balance(drifted.load())) != resources[-1]["spec"]["planHash"]
    for out in (None, tmp_path):
        kept = a_later_look(store, drifted, out)
        assert isinstance(kept, Refusal)
        assert (kept.reason, "as good as what was found now" in str(kept)) == ("AlreadyProposed", True)
    assert (list(store.kept), list(tmp_path.iterdir())) == ([name], [file])
    # Much more on one of the disks: what waits would leave it there.
    heavy = (found.replicas["log_dir"] == "/disk0") & (found.replicas["broker"] == 1)
    grown = replace(found, replicas=found.replicas.assign(size=size.where(~heavy, size * 2)))
    better = a_later_look(store, grown)
    assert isinstance(better, Outcome)
    assert better.submitted not in (None, name)
    assert list(store.kept) == [better.submitted]


@pytest.mark.spec("REB-05", "REB-08")
def test_a_proposal_that_leaves_partitions_on_one_rack_is_superseded() -> None:
    """Racks were given to the brokers while it waited."""
    store = FakeStore()
    _, found, resources = a_proposal()
    name = submit(resources, store)
    assert "ballast.dev/on-more-racks" not in resources[-1]["metadata"]["annotations"]
    racks = replace(found, brokers=[broker._replace(rack="aab"[broker.id - 1]) for broker in found.brokers])
    better = a_later_look(store, racks)
    assert isinstance(better, Outcome)
    assert better.submitted not in (None, name)
    assert better.submitted is not None
    told = store.kept[better.submitted]["metadata"]["annotations"]["ballast.dev/on-more-racks"]
    assert int(told) > 0
    assert better.message.startswith(f"{told} partitions come on more racks; ")
    kept = a_later_look(store, racks)
    assert isinstance(kept, Refusal)
    assert kept.reason == "AlreadyProposed"


@pytest.mark.spec("REB-08", "OPR-30")
def test_a_large_proposal_stays_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows are in ConfigMaps, in Kubernetes and in the file; without them it cannot be told whether it fits."""
    monkeypatch.setattr("ballast_planner.resource.MAX_ROWS", 1)
    monkeypatch.setattr("ballast_planner.resource.MAX_OBJECT_BYTES", 9 * 1024)
    store = FakeStore()
    _, found, resources = a_proposal()
    assert len(resources) > 2
    name, size = submit(resources, store), found.replicas["size"]
    file = write_yaml(resources, tmp_path)
    drifted = replace(found, replicas=found.replicas.assign(size=size + found.replicas["partition"] % 7 * (1 << 20)))
    for out in (None, tmp_path):
        kept = a_later_look(store, drifted, out)
        assert isinstance(kept, Refusal)
        assert (kept.reason, list(tmp_path.iterdir())) == ("AlreadyProposed", [file])
    store.kept[resources[0]["metadata"]["name"]]["data"]["partitions.json"] = "["
    better = a_later_look(store, drifted)
    assert isinstance(better, Outcome)
    assert better.submitted not in (None, name)


@pytest.mark.spec("REB-08")
@pytest.mark.parametrize("why", ["elsewhere", "excluded", "expired"])
def test_a_proposal_that_does_not_fit_any_more_is_superseded(why: str) -> None:
    plan, found, (resource,) = a_proposal()
    load, planning, now = found.load(), PlanOptions(), "2023-11-15T00:00:00Z"
    assert as_good(Older(resource, {}), load, plan, planning, Threshold(), now)
    if why == "elsewhere":
        resource["spec"]["partitions"][0]["from"]["logDirs"] = ["/gone"] * 2
    elif why == "excluded":
        planning = PlanOptions(excluded_topics=frozenset({"orders"}))
    else:
        now = "2023-11-16T00:00:00Z"
    assert not as_good(Older(resource, {}), load, plan, planning, Threshold(), now)


@pytest.mark.spec("REB-04", "REB-08")
def test_a_proposal_that_finds_no_room_but_in_the_forecast_is_superseded() -> None:
    """Its copies are made when it is approved, before retention has taken what the forecast sees go."""
    store = FakeStore()
    _, found, resources = a_proposal()
    name = submit(resources, store)
    first = next(row for row in resources[-1]["spec"]["partitions"] if row["wave"] == 0)
    there, here = (set(zip(row["replicas"], row["logDirs"], strict=True)) for row in (first, first["from"]))
    ((broker, path),) = there - here
    full = [
        row._replace(used_bytes=row.total_bytes) if (row.broker, row.path) == (broker, path) else row
        for row in found.directories
    ]
    later = replace(found, at_s=found.at_s + 3_600, directories=full)
    load, options = found.load(), JobOptions(ProposalOptions("c", "ns"), threshold=Threshold(min_improvement=0.5))
    better = plan_balance(load, PlanOptions(band=0.05))
    outcome = _propose(options, later, load, better, store)
    assert outcome.submitted not in (None, name)
    assert list(store.kept) == [outcome.submitted]


@pytest.mark.spec("REB-08")
def test_a_file_that_stays_or_cannot_be_written_leaves_no_proposal_untold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the proposal goes to Kubernetes and to Git, either both have it, or it is told what has it."""
    store = FakeStore()
    _, found, resources = a_proposal()
    file = write_yaml(resources, tmp_path)
    options = JobOptions(ProposalOptions("c", "ns"), threshold=Threshold(min_improvement=0.5), out=tmp_path)
    other = plan_balance(found.load(), PlanOptions(band=0.05))
    with pytest.raises(Refusal, match="as good as what was found now"):
        _propose(options, found, found.load(), other, store)
    assert (store.kept, list(tmp_path.iterdir())) == ({}, [file])

    def full(*_: Any, **__: Any) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    strict = replace(options, threshold=Threshold(min_improvement=-1.0))
    outcome = _propose(strict, found, found.load(), other, store)
    assert list(tmp_path.iterdir()) == [file]
    assert (outcome.reason, [outcome.submitted], outcome.written) == ("Proposed", list(store.kept), ())
    assert "No space left on device" in outcome.lacks[-1]


@pytest.mark.spec("REB-08")
@pytest.mark.parametrize("how", ["approved", "automatic", "running", "foreign", "somebody's", "changed"])
def test_nothing_is_proposed_beside_a_reassignment_that_lives(how: str) -> None:
    store = FakeStore()
    _, _, first = a_proposal()
    _, _, second = a_proposal(band=0.05)
    name = submit(first, store)
    if how == "approved":
        store.kept[name]["spec"]["approvedPlan"] = "x"
    elif how == "automatic":
        store.kept[name]["spec"]["approval"] = "Automatic"
    elif how == "running":
        store.kept[name]["status"] = {"phase": "Running"}
    elif how == "somebody's":
        store.kept[name]["metadata"] = {"name": name}  # as people write them
    elif how == "foreign":
        del store.kept[name]["metadata"]["labels"]["app.kubernetes.io/created-by"]
    else:
        store.conflicts = True
    with pytest.raises(Refusal) as caught:
        submit(second, store)
    assert caught.value.reason == "ReassignmentInProgress"
    assert list(store.kept) == [name]
    store.kept[name]["status"] = {"phase": "Succeeded"}
    store.conflicts = False
    submit(second, store)
    assert len(store.kept) == 2


@pytest.mark.spec("REB-08")
def test_another_clusters_reassignments_are_in_nobodys_way() -> None:
    store = FakeStore()
    plan, found, resources = a_proposal()
    other = submit(build(plan, found, ProposalOptions("other", "ns"), PlanOptions()), store)
    store.kept[other]["status"] = {"phase": "Running"}
    name = submit(resources, store)
    assert list(store.kept) == [other, name]


@pytest.mark.spec("REB-08")
def test_a_proposal_that_leaves_a_disk_empty_is_not_as_good() -> None:
    """Though the fullest disk, which has what no plan moves, stays as full with either."""
    rows = [Replica("fixed", 0, 0, "/a", 60, True), *(Replica("t", number, 0, "/b", 1, True) for number in range(50))]
    directories = [Directory(0, path, 100, used) for path, used in (("/a", 60), ("/b", 50), ("/c", 0))]
    load = ClusterLoad.from_rows([Broker(0)], directories, rows)
    planning = PlanOptions(excluded_topics=frozenset({"fixed"}))
    plan = plan_balance(load, planning)

    def is_kept(rows: Sequence[Mapping[str, Any]]) -> bool:
        older = Older({"spec": {"partitions": rows}}, {})
        return as_good(older, load, plan, planning, Threshold(), "2023-11-14T22:13:20Z")

    whole = spec_rows(plan.moves)
    assert (is_kept(whole), is_kept(whole[:1])) == (True, False)


@pytest.mark.spec("REB-08", "OPR-36")
def test_a_reassignment_that_waits_for_somebody_is_told_as_what_stands_in_the_way() -> None:
    """It moves nothing and may never end by itself, so that nobody would ever be proposed anything again."""
    store = FakeStore()
    _, _, first = a_proposal()
    _, _, second = a_proposal(band=0.05)
    name = submit(first, store)
    stalled = {"type": "Stalled", "status": "True", "message": "What is left is for brokers that are gone (3)."}
    store.kept[name]["spec"]["approvedPlan"] = "x"
    store.kept[name]["status"] = {"phase": "Running", "conditions": [stalled]}
    with pytest.raises(Refusal, match=rf"^{name} gets no further .* that are gone \(3\)\.$") as caught:
        submit(second, store)
    assert caught.value.reason == "ReassignmentStalled"
    stalled["status"] = "False"
    with pytest.raises(Refusal, match="is Running") as caught:
        submit(second, store)
    assert caught.value.reason == "ReassignmentInProgress"


@pytest.mark.spec("REB-08")
@pytest.mark.parametrize("phase", ["Stale", "Cancelled", "Failed", "Succeeded"])
def test_a_plan_that_came_to_nothing_is_proposed_again(phase: str) -> None:
    """A cluster that did not change gives the same plan, and that the same name."""
    store = FakeStore()
    _, _, resources = a_proposal()
    name = submit(resources, store)
    store.kept[name]["status"] = {"phase": phase}
    assert submit(resources, store) == name
    assert "status" not in store.kept[name]


@pytest.mark.spec("REB-08")
def test_yaml_supersedes_only_what_nobody_approved(tmp_path: Path) -> None:
    _, _, first = a_proposal()
    _, _, second = a_proposal(band=0.05)
    old = write_yaml(first, tmp_path)
    (document,) = yaml.safe_load_all(old.read_text(encoding="utf-8"))
    assert document == first[-1]
    new = write_yaml(second, tmp_path)
    assert sorted(tmp_path.iterdir()) == [new]
    document = copy.deepcopy(second[-1])
    document["spec"]["approvedPlan"] = "x"
    new.write_text(yaml.safe_dump(document), encoding="utf-8")
    write_yaml(second, tmp_path)
    assert yaml.safe_load(new.read_text(encoding="utf-8"))["spec"]["approvedPlan"] == "x"
    write_yaml(first, tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([old, new])


@pytest.mark.spec("REB-08")
def test_nothing_is_proposed_beside_an_approved_file_whose_moves_are_yet_to_come(tmp_path: Path) -> None:
    """Between the merge and the end of the moves: the next look would plan from a base that is about to change."""
    plan, found, resources = a_proposal()
    file = write_yaml(resources, tmp_path)
    resource = yaml.safe_load(file.read_text())

    def approve(**more: Any) -> None:
        resource["spec"] |= {"approvedPlan": resource["spec"]["planHash"], **more}
        file.write_text(yaml.safe_dump(resource))

    approve()
    grown = replace(found, replicas=found.replicas.assign(size=found.replicas["size"] * 1.1))
    refused = a_later_look(FakeStore(), grown, tmp_path)
    assert isinstance(refused, Refusal)
    assert (refused.reason, "not done yet" in str(refused)) == ("ReassignmentInProgress", True)
    approve(expiresAt="2023-11-14T22:14:00Z")
    assert isinstance(a_later_look(FakeStore(), grown, tmp_path), Outcome)
    approve(expiresAt="2023-11-15T22:13:20Z")
    to = {(m.topic, m.partition, broker): path for m in plan.moves for broker, path in m.to.as_pairs().items()}
    places = [
        to.get((row.topic, row.partition, row.broker), row.log_dir) for row in found.replicas.itertuples(index=False)
    ]
    done = replace(found, replicas=found.replicas.assign(log_dir=places))
    assert isinstance(a_later_look(FakeStore(), done, tmp_path), Outcome), "all of it is done"


@pytest.mark.spec("REB-08")
@pytest.mark.parametrize("late", [False, True], ids=["unapproved", "approved too late"])
def test_a_file_that_expired_is_written_anew(tmp_path: Path, late: bool) -> None:
    """Merged as it was, its Reassignment would end before it began, and be told as proposed at every look."""
    plan, found, first = a_proposal()
    file = write_yaml(first, tmp_path)
    if late:
        first[-1]["spec"]["approvedPlan"] = first[-1]["spec"]["planHash"]
        file.write_text(yaml.safe_dump_all(first), encoding="utf-8")

    def again(hours: int) -> str:
        later = replace(found, at_s=found.at_s + 3_600 * hours)
        assert write_yaml(build(plan, later, ProposalOptions("c", "ns"), PlanOptions()), tmp_path) == file
        return str(yaml.safe_load(file.read_text(encoding="utf-8"))["spec"]["expiresAt"])

    assert again(23) == "2023-11-15T22:13:20Z"
    assert again(25) == "2023-11-16T23:13:20Z"
    assert "approvedPlan" not in yaml.safe_load(file.read_text(encoding="utf-8"))["spec"]


@pytest.mark.spec("REB-08")
def test_a_time_without_quotes_is_as_late_as_one_with_them(tmp_path: Path) -> None:
    """As tools write it that know Kubernetes' YAML: read as a date, it had expired at the beginning of its day."""
    plan, found, first = a_proposal()
    file = write_yaml(first, tmp_path)
    text = file.read_text().replace("'2023-11-15T22:13:20Z'", "2023-11-15T22:13:20Z")
    file.write_text(text)
    later = replace(found, at_s=found.at_s + 3_600 * 23)
    assert write_yaml(build(plan, later, ProposalOptions("c", "ns"), PlanOptions()), tmp_path) == file
    assert file.read_text() == text
    assert " 2023-11-15T22:13:20Z" in text


@pytest.mark.spec("REB-08")
def test_a_cancelled_file_is_in_the_way_of_the_same_plan_alone(tmp_path: Path) -> None:
    """It would be told as proposed, while its Reassignment has ended for good."""
    _, found, resources = a_proposal()
    file = write_yaml(resources, tmp_path)
    resources[-1]["spec"] |= {"approvedPlan": resources[-1]["spec"]["planHash"], "cancel": True}
    file.write_text(yaml.safe_dump_all(resources), encoding="utf-8")
    refused = a_later_look(FakeStore(), found, tmp_path)
    assert isinstance(refused, Refusal)
    assert (refused.reason, "cancelled" in str(refused)) == ("AlreadyProposed", True)
    drift = found.replicas["partition"] % 7 * (1 << 20)
    drifted = replace(found, replicas=found.replicas.assign(size=found.replicas["size"] + drift))
    outcome = a_later_look(FakeStore(), drifted, tmp_path)
    assert isinstance(outcome, Outcome)
    assert outcome.written not in ((), (file,))


class Outline(html.parser.HTMLParser):
    """What a screen reader would hold on to, and every address that a page would load."""

    VOID = frozenset({"meta", "rect", "path"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.language = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        named = dict(attrs)
        self.language = named.get("lang") or self.language
        self.addresses += [str(named[name]) for name in ("src", "href") if name in named]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def a_page() -> str:
    plan, found, (resource,) = a_proposal()
    return report.render(found.load(), plan, "c<luster", found.at_s, approve_command(resource), ["no <history>"])


@pytest.mark.spec("REB-09")
def test_the_report_stands_alone_and_can_be_read_aloud() -> None:
    page, outline = a_page(), Outline()
    outline.feed(page)
    assert outline.open == []
    assert outline.language == "en"
    assert outline.addresses == []
    assert "script" not in outline.tags
    assert "http" not in re.sub(r"https?://www\.w3\.org\S*", "", page)
    assert outline.tags.count("h1") == 1
    assert outline.tags.count("caption") == outline.tags.count("table")
    assert "c&lt;luster" in page
    assert "no &lt;history&gt;" in page
    assert "approvedPlan" in page


@pytest.mark.spec("REB-09")
def test_the_report_says_what_it_is_about() -> None:
    plan, found, _ = a_proposal()
    page = report.render(found.load(), plan, "c", found.at_s, None, ahead_s=24 * 3600)
    assert "with sizes as forecast for 24 hours later" in page
    assert "nothing to approve" in page
    assert "forecast" not in a_page()


@pytest.mark.spec("REB-09")
def test_the_flow_lists_disks_in_the_order_of_their_numbers() -> None:
    names = [f"{broker}:/disk-{disk}" for broker in (1, 2, 11) for disk in (2, 10)]
    picture = flow_svg(Counter({(name, "0:/new"): 1 for name in reversed(names)}), str)
    assert re.findall(r'text-anchor="end">([^<]*)<', picture) == names


@pytest.mark.spec("REB-09")
def test_the_reports_bars_are_the_plans_fill_levels() -> None:
    plan, found, _ = a_proposal()
    before, after = report.directory_fills(found.load(), plan)
    assert plan.quality is not None
    assert max(before) == pytest.approx(plan.quality.before.highest)
    assert max(after) == pytest.approx(plan.quality.after.highest)
    assert min(after) == pytest.approx(plan.quality.after.lowest)
