"""What the operator wrote down before it acted is kept until the object's status says it, or the object is gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, cast

import pytest
from tests.operator.making import NOW, topic_view
from tests.operator.test_left_behind import CLUSTER, Told, shared_by

from ballast_operator import ledger as ledger_module
from ballast_operator.apply.kubernetes import ApiError, ApiUnavailableError, KubernetesApi
from ballast_operator.cache import Cache
from ballast_operator.cycle import ClusterCycle
from ballast_operator.handlers.topics import TopicHandler
from ballast_operator.ledger import KEY, Ledger, _read, _write, joined
from ballast_operator.model.cluster import read_cluster
from ballast_operator.model.kafka import Outcome
from ballast_operator.model.meta import Key
from ballast_operator.model.topic import KafkaTopic
from ballast_operator.plan.topics import Intent, TopicFacts
from ballast_operator.worker import Part, Requeue, Work

CREATION = Intent("orders", create=True, config=("retention.ms",))


def topic_body(uid: str, name: str = "orders") -> dict[str, Any]:
    meta = {"name": name, "namespace": "default", "uid": uid, "resourceVersion": "7", "generation": 1}
    return {"metadata": meta, "spec": {"clusterRef": {"name": "demo"}, "partitions": 1}}


def ledger(api: KubernetesApi | None = None) -> Ledger:
    meta = {"name": "demo", "namespace": "default", "uid": "c"}
    body = {"metadata": meta, "spec": {"external": {"bootstrapServers": "127.0.0.1:9092"}}}
    return Ledger(api or OneConfigMap(), read_cluster(body))


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
    cache.topics.listed.add(None)
    assert ledger()._unresolved(intents, cache) == {"heard": CREATION}


@pytest.mark.spec("OPR-04", "OPR-08")
def test_an_object_that_cannot_be_read_is_not_gone() -> None:
    cache = Cache()
    cache.put_topic({**topic_body("broken"), "spec": {"clusterRef": {"name": "demo"}, "partitions": "many"}})
    cache.topics.listed.add(None)
    assert cache.topics.broken
    assert cache.gone_topics("default", ["broken", "gone"]) == {"gone"}


@pytest.mark.spec("OPR-04")
def test_an_intention_ages_from_when_it_was_heard_of(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(ledger_module, "monotonic", lambda: now[0])
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


class OneConfigMap(KubernetesApi):
    """The API server, as far as a ledger needs it: it takes no ConfigMap of more than 1 MiB."""

    def __init__(self) -> None:
        self.text = ""

    async def find(self, path: str) -> dict[str, Any] | None:
        return None

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return await self.replace(path, body)

    async def replace(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        self.text = body["data"][KEY]
        if len(self.text) > 1 << 20:
            raise ApiError(422, "Invalid", "ConfigMap: Too long: must have at most 1048576 bytes")
        return {"metadata": {"resourceVersion": "1"}}


@pytest.mark.spec("OPR-04", "OPR-05")
def test_what_the_ledger_has_no_room_for_waits_until_there_is_some() -> None:
    """12,000 topics that a cluster refuses for now, one batch after the other: no ConfigMap takes all of them."""
    api, cache = OneConfigMap(), Cache()
    cache.topics.listed.add(None)
    held = ledger(api)
    wanted = {f"{index:036d}": Intent(f"team.service-{index}.events", create=True) for index in range(12_000)}
    for uid, intent in wanted.items():
        cache.put_topic(topic_body(uid, intent.topic))

    async def scenario() -> None:
        left: list[str] = []
        for start in range(0, len(wanted), 1_000):
            batch = dict(list(wanted.items())[start : start + 1_000])
            left += await held.record(batch, cache)
            assert (await held.load()).keys() >= batch.keys() - set(left)
        written = set(json.loads(api.text))
        assert (len(written) > 5_000, written | set(left)) == (True, set(wanted))
        assert set(await held.record({uid: wanted[uid] for uid in written}, cache)) == set(), "these are there"
        first = sorted(written)[:100]
        for uid in first:
            body = topic_body(uid, wanted[uid].topic)
            body["metadata"]["resourceVersion"] = "8"
            cache.put_topic({**body, "status": {"topicId": "new"}})
        crowded = await held.record({uid: wanted[uid] for uid in left[:90]}, cache)
        assert crowded == set(), "a hundred are told by now"

    asyncio.run(scenario())


class Versions(OneConfigMap):
    """It takes a change onto the present version only, and none while it is away."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.version, self.away = "{}", 1, False

    async def find(self, path: str) -> dict[str, Any] | None:
        return {"metadata": {"resourceVersion": str(self.version)}, "data": {KEY: self.text}}

    async def replace(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        if self.away:
            raise ApiUnavailableError("connection refused")
        if body["metadata"]["resourceVersion"] != str(self.version):
            raise ApiError(409, "Conflict", "the object has been modified")
        self.text, self.version = body["data"][KEY], self.version + 1
        return {"metadata": {"resourceVersion": str(self.version)}}

    def somebody_writes(self, **more: Intent) -> None:
        self.text = json.dumps(json.loads(self.text) | {uid: _write(intent) for uid, intent in more.items()})
        self.version += 1


@pytest.mark.spec("OPR-04", "OPR-08")
@pytest.mark.parametrize("away", [False, True])
async def test_what_kafka_has_refused_stays_withdrawn_whoever_writes_meanwhile(away: bool) -> None:
    """A topic of that name that somebody else made then was taken for ours."""
    api = Versions()
    held = ledger(api)
    await held.record({"u": CREATION}, Cache())
    api.somebody_writes(other=CREATION)
    api.away = away
    if away:
        with pytest.raises(ApiUnavailableError):
            await held.withdraw({"u"})
        api.away = False
        assert (await held.load()).keys() == {"other"}
        await held.prune(Cache())
    else:
        await held.withdraw({"u"})
    assert json.loads(api.text).keys() == {"other"}
    await held.record({"u": CREATION}, Cache())
    assert (await held.load()).keys() == json.loads(api.text).keys() == {"u", "other"}


@pytest.mark.spec("OPR-04", "OPR-05")
async def test_a_ledger_that_somebody_else_has_written_is_read_anew_and_no_cycle_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All topics of the cluster waited two seconds and more. Nothing is done before a new look."""
    api, cache, events = Versions(), Cache(), list[str]()
    _, topic = cache.put_topic(topic_body("u"))
    assert topic is not None
    held = ledger(api)
    handler = TopicHandler(CLUSTER, cache, cast(Any, Told()), shared_by(cache).events)

    async def observe(topics: Mapping[Key, KafkaTopic], *_: Any) -> dict[Key, TopicFacts]:
        if not events:
            api.somebody_writes(other=CREATION)
        events.append("looks")
        made = {"view": topic_view((0,)), "config": {}} if "acts" in events else {"missing": True}
        return {key: TopicFacts(intent=(await held.load()).get("u"), **cast(Any, made)) for key in topics}

    async def act(*_: Any) -> tuple[dict[Key, Outcome], set[Key]]:
        events.append("acts")
        assert "u" in json.loads(api.text)
        return {topic.key: Outcome()}, set()

    monkeypatch.setattr(handler, "_observe", observe)
    monkeypatch.setattr(handler, "_act_on_kafka", act)
    await held.load()
    requeue = Requeue()
    await handler.handle([topic.key], NOW, requeue, cast(Any, object()), held)
    assert (events, requeue.topics) == (["looks", "looks", "acts", "looks"], set())
    cache.topics.listed.add(None)
    api.somebody_writes()
    await held.prune(cache)
    await held.prune(cache)
    assert json.loads(api.text).keys() == {"u"}, "the other's object is gone"


class Broken(OneConfigMap):
    """The ConfigMap as a person left it, or an API server that does not let the operator at it."""

    def __init__(self, text: str, refuses: str = "") -> None:
        super().__init__()
        self.text, self.refuses = text, refuses

    async def find(self, path: str) -> dict[str, Any] | None:
        return {"metadata": {"resourceVersion": "1"}, "data": {KEY: self._allowed("get", path)}}

    async def replace(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        raise AssertionError(self._allowed("update", path))

    def _allowed(self, verb: str, path: str) -> str:
        if verb == self.refuses:
            raise ApiError(403, "Forbidden", f'configmaps "{path.rpartition("/")[2]}" is forbidden: cannot {verb}')
        return self.text


@pytest.mark.spec("OPR-02", "OPR-04", "OPR-08")
@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (Broken("{"), "not what was written"),
        (Broken("[]"), "not what was written"),
        (Broken('{"uid": {}}'), "not what was written"),
        (Broken("{}", "get"), "cannot get"),
        (Broken("{}", "update"), "cannot update"),
    ],
)
def test_a_ledger_that_cannot_be_used_is_told_by_every_topic(
    broken: Broken, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It failed each cycle, and was told in the operator's log only."""
    cache, told = Cache(), Told()
    cache.put_topic(topic_body("u"))
    external = {"volumes": [], "external": {"bootstrapServers": "127.0.0.1:1"}}
    cache.clusters.put({"metadata": {"name": "demo", "namespace": "default", "uid": "c"}, "spec": external})
    subject = cache.clusters.get(CLUSTER)
    assert subject is not None
    cycle = ClusterCycle(CLUSTER, shared_by(cache, told))
    cycle._ledger = Ledger(broken, subject)
    handle = cycle._topics.handle

    async def scenario() -> Requeue:
        requeue = Requeue()

        async def needs_the_ledger(keys: Any, now: str, requeue: Requeue, *rest: Any, **more: Any) -> None:
            if rest:
                await rest[1].record({"u": CREATION}, cache)
            await handle(keys, now, requeue, *rest, **more)

        monkeypatch.setattr(cycle._topics, "handle", needs_the_ledger)
        kafka: Any = object()
        await cycle._serve(Work({Key("default", "orders")}), requeue, kafka, None, subject)
        return requeue

    requeue = asyncio.run(scenario())
    assert (told.reasons, requeue.failed, requeue.topics) == (
        {"orders": "LedgerUnusable"},
        {Part.TOPICS},
        {Key("default", "orders")},
    )
    assert why in told.messages["orders"]
    assert "demo-ballast-intents" in told.messages["orders"]
