"""What the operator wrote down before it acted is kept until the object's status says it, or the object is gone."""

from __future__ import annotations

from typing import Any

import pytest

from ballast_operator.cache import Cache
from ballast_operator.ledger import Ledger, _read, _write, joined
from ballast_operator.model.cluster import read_cluster
from ballast_operator.plan.topics import Intent

CREATION = Intent("orders", create=True, config=("retention.ms",))


def topic_body(uid: str, name: str = "orders") -> dict[str, Any]:
    meta = {"name": name, "namespace": "default", "uid": uid, "resourceVersion": "7", "generation": 1}
    return {"metadata": meta, "spec": {"clusterRef": {"name": "demo"}, "partitions": 1}}


def ledger() -> Ledger:
    meta = {"name": "demo", "namespace": "default", "uid": "c"}
    body = {"metadata": meta, "spec": {"external": {"bootstrapServers": "127.0.0.1:9092"}}}
    return Ledger(None, read_cluster(body))  # type: ignore[arg-type]


@pytest.mark.spec("OPR-04")
def test_a_change_does_not_make_a_creation_forgotten() -> None:
    change = Intent("orders", config=("cleanup.policy",))
    assert joined(CREATION, change) == Intent("orders", create=True, config=("cleanup.policy", "retention.ms"))
    assert joined(None, change) == change
    assert joined(CREATION, Intent("others", create=True)) == Intent("others", create=True)


@pytest.mark.spec("OPR-04", "OPR-08")
def test_an_object_that_was_not_heard_of_yet_is_not_gone() -> None:
    cache = Cache()
    cache.put_topic(topic_body("heard"))
    intents = {"heard": CREATION, "unheard": CREATION}
    assert ledger()._unresolved(intents, cache) == intents
    cache.whole = True
    assert ledger()._unresolved(intents, cache) == {"heard": CREATION}


@pytest.mark.spec("OPR-04", "OPR-08")
def test_an_object_that_cannot_be_read_is_not_gone() -> None:
    cache = Cache()
    cache.put_topic({**topic_body("broken"), "spec": {"clusterRef": {"name": "demo"}, "partitions": "many"}})
    cache.whole = True
    assert cache.topics.broken
    assert cache.gone_topics(["broken", "gone"]) == {"gone"}


@pytest.mark.spec("OPR-04")
def test_an_intention_ages_from_when_it_was_heard_of(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("ballast_operator.ledger.monotonic", lambda: now[0])
    held = ledger()
    held._keep({"first": CREATION})
    now[0] = 107.0
    held._keep({"first": CREATION, "second": CREATION})
    assert (held.age_s("first"), held.age_s("second"), held.age_s("unknown")) == (7.0, 0.0, 0.0)


@pytest.mark.spec("OPR-04")
def test_that_a_topic_was_made_anew_is_told_by_the_new_id_only() -> None:
    """The status still has the id of the one that somebody deleted."""
    anew = Intent("orders", create=True, config=("retention.ms",), former="old")
    status = {"topicId": "old", "managedConfig": ["retention.ms"]}
    cache = Cache()
    cache.put_topic({**topic_body("anew"), "status": status})
    assert ledger()._unresolved({"anew": anew}, cache) == {"anew": anew}
    assert _read(_write(anew)) == anew
    renewed = {**topic_body("anew"), "status": {**status, "topicId": "new"}}
    renewed["metadata"]["resourceVersion"] = "8"
    cache.put_topic(renewed)
    assert ledger()._unresolved({"anew": anew}, cache) == {}
