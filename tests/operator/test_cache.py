"""The cache holds what the newest event said, whatever the order of events."""

from typing import Any

import pytest

from ballast_operator.cache import Cache
from ballast_operator.model.fields import write
from ballast_operator.model.meta import Key
from ballast_operator.plan.topics import TopicFacts, plan_topic

CLUSTER = Key("default", "demo")


def body(name: str, version: int, uid: str = "u", created: str = "2026-01-01T00:00:00Z", **spec: Any) -> dict[str, Any]:
    meta = {
        "name": name,
        "namespace": "default",
        "uid": uid,
        "resourceVersion": str(version),
        "creationTimestamp": created,
    }
    return {"metadata": meta, "spec": {"clusterRef": {"name": "demo"}, **spec}}


@pytest.mark.spec("OPR-04")
def test_doubled_and_reordered_events_change_nothing() -> None:
    cache = Cache()
    cache.put_topic(body("t", 5, partitions=3))
    before, now = cache.put_topic(body("t", 5, partitions=3))
    assert before is now
    cache.put_topic(body("t", 4, partitions=2))
    found = cache.topics.get(Key("default", "t"))
    assert found is not None
    assert found.spec.partitions == 3


@pytest.mark.spec("OPR-04")
def test_the_deletion_of_a_former_object_of_that_name_is_ignored() -> None:
    cache = Cache()
    cache.put_topic(body("t", 9, uid="new"))
    assert cache.remove_topic(Key("default", "t"), "old") is None
    assert cache.topics.get(Key("default", "t")) is not None
    assert cache.remove_topic(Key("default", "t"), "new") is not None
    assert cache.topics_of(CLUSTER) == []


@pytest.mark.spec("OPR-24")
def test_the_oldest_of_several_for_one_topic_comes_first() -> None:
    cache = Cache()
    cache.put_topic(body("b", 1, uid="b", created="2026-01-02T00:00:00Z", topicName="x"))
    cache.put_topic(body("a", 2, uid="a", created="2026-01-01T00:00:00Z", topicName="x"))
    assert [one.meta.name for one in cache.topics_named(CLUSTER, "x")] == ["a", "b"]


@pytest.mark.spec("OPR-24")
def test_of_two_made_in_the_same_second_the_one_that_has_the_topic_stays_first() -> None:
    cache = Cache()
    cache.put_topic(body("a", 1, uid="a", topicName="x"))
    cache.put_topic({**body("b", 2, uid="b", topicName="x"), "status": {"topicId": "id", "partitions": 3}})
    assert [one.meta.name for one in cache.topics_named(CLUSTER, "x")] == ["b", "a"]
    # The other one is told the id, too, so that it can take over.
    (owner,) = [one for one in cache.topics if one.meta.name == "b"]
    (other,) = [one for one in cache.topics if one.meta.name == "a"]
    told = write(plan_topic(other, TopicFacts(rival=owner)).status)
    cache.put_topic({**body("a", 3, uid="a", topicName="x"), "status": told})
    assert [one.meta.name for one in cache.topics_named(CLUSTER, "x")] == ["b", "a"]


def test_an_object_that_cannot_be_read_is_kept_apart_and_does_not_look_deleted() -> None:
    cache = Cache()
    cache.put_topic(body("t", 1))
    cache.put_topic(body("t", 2, partitions="many"))
    assert cache.topics.get(Key("default", "t")) is None
    assert "partitions" in cache.topics.broken[Key("default", "t")].error
    cache.put_topic(body("t", 3, partitions=2))
    assert cache.topics.broken == {}


@pytest.mark.spec("OPR-04")
def test_what_was_read_before_a_deletion_and_comes_after_it_brings_nothing_back() -> None:
    cache = Cache()
    cache.put_topic(body("t", 5))
    cache.remove_topic(Key("default", "t"), "u")
    assert cache.put_topic(body("t", 4)) == (None, None)
    assert cache.topics_of(CLUSTER) == []
    cache.put_topic(body("t", 6, uid="another"))
    assert [one.meta.uid for one in cache.topics_of(CLUSTER)] == ["another"]


def test_the_deletion_of_a_former_object_leaves_one_that_cannot_be_read() -> None:
    cache = Cache()
    cache.put_topic(body("t", 2, partitions="many"))
    cache.remove_topic(Key("default", "t"), "former")
    assert cache.topics.broken
    cache.remove_topic(Key("default", "t"), "u")
    assert cache.topics.broken == {}
