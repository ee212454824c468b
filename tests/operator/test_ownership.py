"""Whom claims belong to: never one that may be gone, and what goes with a cluster that is gone is not taken in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.operator.making import NOW, cluster

from ballast_operator.apply.kubernetes import ApiError
from ballast_operator.handlers.kube_objects import KubeObjects
from ballast_operator.handlers.ownership import Ownership
from ballast_operator.plan.kube import ClaimFacts, KubeFacts
from ballast_operator.plan.ownership import goes_with_another, owners_wanted
from ballast_operator.resources.layout import new_identity, write_identity
from ballast_operator.status import NotServedError

KEEPS = cluster()
TAKES = cluster(storage={"deleteClaim": True})
BORN = new_identity(KEEPS, "id")
BALLAST = {"apiVersion": "ballast.dev/v1alpha1", "kind": "KafkaCluster", "name": "demo"}
OURS, FORMER = {**BALLAST, "uid": "uid-demo"}, {**BALLAST, "uid": "uid-before"}
SET = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "demo", "uid": "uid-set"}
GONE_SET = {**SET, "uid": "uid-of-a-set-before"}
BACKUP = {"apiVersion": "backups.example/v1", "kind": "Backup", "name": "b", "uid": "uid-backup"}


@pytest.mark.spec("OPR-08", "OPR-45")
def test_who_is_to_own_a_claim() -> None:
    assert owners_wanted(KEEPS, [BACKUP, SET, OURS, FORMER], {"uid-set"}) == [BACKUP]
    assert owners_wanted(TAKES, [BACKUP, SET, FORMER, OURS], {"uid-set"}) == [BACKUP, OURS]
    (given,) = owners_wanted(TAKES, [])
    assert {**given, **OURS} == given
    assert (given["controller"], given["blockOwnerDeletion"]) == (False, False), "a StatefulSet may still be that"
    assert owners_wanted(KEEPS, [GONE_SET], {"uid-set"}) == [GONE_SET], "it is garbage already, with others of its set"
    assert goes_with_another(TAKES, [FORMER])
    assert not goes_with_another(TAKES, [FORMER, OURS])
    assert not goes_with_another(TAKES, [BACKUP])


class Api:
    """The API server with a KafkaCluster and its identity; keeps what is written, in order."""

    def __init__(self, found: dict[str, Any] | None, identity: list[Any] | None = None, conflict: str = "") -> None:
        self.found = {"metadata": found} if found else None
        self.identity = {"metadata": {"uid": "i", "resourceVersion": "5", "ownerReferences": identity or []}}
        self.conflict = conflict
        self.written: list[tuple[str, Any]] = []

    async def find(self, path: str) -> dict[str, Any] | None:
        return self.identity if path.endswith("demo-identity") else self.found

    async def merge(self, path: str, body: dict[str, Any]) -> None:
        name = path.rpartition("/")[2]
        if name == self.conflict:
            raise ApiError(409, "Conflict", "the object has been modified")
        assert body["metadata"]["uid"]
        assert body["metadata"]["resourceVersion"]
        self.written.append((name, [owner["uid"] for owner in body["metadata"]["ownerReferences"] or ()]))


@pytest.mark.spec("OPR-08", "OPR-45")
async def test_an_identity_is_not_made_anew_after_its_cluster() -> None:
    """It went as garbage, and would be that of the next one of this name. This API has no `create`."""
    api = Api(None)
    api.identity = None  # type: ignore[assignment]
    assert not await Ownership(cast(Any, SimpleNamespace(api=api))).bring(TAKES, facts(), BORN)


def facts(*owners: dict[str, Any]) -> KubeFacts:
    row = ClaimFacts("a-demo-0", "uid", "a", "demo-0", "1Gi", resource_version="4", owners=owners)
    return KubeFacts(exists=True, claims=(row,))


THERE = {"uid": "uid-demo", "generation": 1}


@pytest.mark.spec("OPR-08")
@pytest.mark.parametrize(
    "found", [None, {**THERE, "uid": "uid-later"}, {**THERE, "generation": 2}, {**THERE, "deletionTimestamp": NOW}]
)
async def test_a_cluster_that_may_be_gone_or_want_something_else_is_given_nothing(found: dict[str, Any] | None) -> None:
    """What was heard of it may be old: with `--cascade=orphan` the claims are to stay, and would be garbage at once."""
    api = Api(found)
    assert not await Ownership(cast(Any, SimpleNamespace(api=api))).bring(TAKES, facts(), BORN)
    assert api.written == []


@pytest.mark.spec("OPR-08", "OPR-45")
async def test_the_identity_stays_as_long_as_a_claim_may() -> None:
    gives = Api(THERE)
    assert await Ownership(cast(Any, SimpleNamespace(api=gives))).bring(TAKES, facts(), BORN)
    assert gives.written == [("a-demo-0", ["uid-demo"]), ("demo-identity", ["uid-demo"])]
    changed = Api(THERE, conflict="a-demo-0")
    assert not await Ownership(cast(Any, SimpleNamespace(api=changed))).bring(TAKES, facts(), BORN)
    assert changed.written == []
    keeps = Api(THERE, identity=[OURS])
    assert await Ownership(cast(Any, SimpleNamespace(api=keeps))).bring(KEEPS, facts(OURS), BORN)
    assert keeps.written == [("demo-identity", []), ("a-demo-0", [])]
    same = Api(None, identity=[OURS])
    assert await Ownership(cast(Any, SimpleNamespace(api=same))).bring(TAKES, facts(OURS), BORN)
    assert same.written == []


class Listing:
    """An API server with one claim of a cluster whose identity is as given."""

    def __init__(self, owners: list[Any], identity: dict[str, Any]) -> None:
        self.claim = {"metadata": {"name": "a-demo-0", "uid": "u", "ownerReferences": owners}}
        self.config_map = {"metadata": {"name": "demo-identity", "uid": "i"}, **identity}

    async def find(self, path: str) -> dict[str, Any] | None:
        return self.config_map if path.endswith("demo-identity") else None

    async def items(self, path: str, _: str) -> Any:
        if path.endswith("persistentvolumeclaims"):
            yield self.claim


@pytest.mark.spec("OPR-08", "OPR-02")
async def test_claims_of_a_cluster_that_was_deleted_are_waited_for() -> None:
    """A broker on a claim that is garbage would lose it under its feet."""
    objects = KubeObjects(cast(Any, SimpleNamespace(api=Listing([FORMER], {}))))
    with pytest.raises(NotServedError) as told:
        await objects.facts(TAKES)
    assert (told.value.verdict.reason, "a-demo-0" in str(told.value)) == ("FormerGoes", True)


@pytest.mark.spec("OPR-08", "OPR-02")
@pytest.mark.parametrize(
    "data", [{}, {"data": None}, {"data": {"voters": "0"}}, {"data": {"clusterId": "x", "voters": "?"}}]
)
async def test_an_identity_that_cannot_be_read_is_told(data: dict[str, Any]) -> None:
    objects = KubeObjects(cast(Any, SimpleNamespace(api=Listing([], data))))
    with pytest.raises(NotServedError) as told:
        await objects.identity(KEEPS)
    verdict = told.value.verdict
    assert (verdict.reason, verdict.stalled, "demo-identity" in verdict.message) == ("IdentityUnreadable", True, True)
    whole = {"data": write_identity(new_identity(KEEPS, "x"))}
    mended = KubeObjects(cast(Any, SimpleNamespace(api=Listing([], whole))))
    assert (await mended.identity(KEEPS)).cluster_id == "x"
