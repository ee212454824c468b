"""What the API server may answer, and what may answer in its place."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from tests.operator.making import NOW, cluster, move, reassignment, topic_view, view
from tests.operator.test_ledger import ledger
from tests.operator.test_left_behind import Told

from ballast_operator.apply.kafka import _create_request
from ballast_operator.apply.kubernetes import ApiError, ApiUnavailableError, KubernetesApi
from ballast_operator.apply.writer import Writer
from ballast_operator.cache import Cache
from ballast_operator.cycle import Shared
from ballast_operator.events import Events
from ballast_operator.handlers.finished import LOOK_SECONDS, Finished
from ballast_operator.handlers.kube_objects import KubeObjects
from ballast_operator.handlers.plans import Case, Plans
from ballast_operator.handlers.reassignment_statuses import ReassignmentStatuses
from ballast_operator.handlers.refusals import Refusals
from ballast_operator.handlers.topics import TopicHandler
from ballast_operator.kafka_client import REQUEST_TIMEOUT_MS, KafkaUnavailableError
from ballast_operator.kubeconfig import ApiAccess
from ballast_operator.leader import Leader
from ballast_operator.metrics import Metrics
from ballast_operator.model.actions import CreateTopic
from ballast_operator.model.kafka import Outcome
from ballast_operator.model.meta import FINALIZER, Key
from ballast_operator.plan.kube import PodFacts
from ballast_operator.plan.lifecycle import ReassignmentFacts, next_step
from ballast_operator.plan.stored import keep
from ballast_operator.plan.topics import Intent, TopicFacts, TopicPlan
from ballast_operator.resources import others
from ballast_operator.side_by_side import AT_ONCE
from ballast_operator.worker import Requeue
from ballast_planner import Plan

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ballast_operator.apply.kubernetes.FIRST_DELAY_SECONDS", 0.001)


@asynccontextmanager
async def server(answer: Answer) -> AsyncIterator[KubernetesApi]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    api = KubernetesApi(ApiAccess(server=f"http://127.0.0.1:{runner.addresses[0][1]}"))
    try:
        yield api
    finally:
        await api.close()
        await runner.cleanup()


@pytest.mark.spec("OPR-04")
async def test_each_answer_tells_the_time_also_a_refusal() -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.json_response({"reason": "NotFound"}, status=404, headers={"Date": "Thu, 01 Jan 2026 09:00:00 GMT"})

    async with server(refuse) as api:
        assert await api.find("/api/v1/namespaces/default/pods/demo-0") is None
        assert api.clock.now().startswith("2026-01-01T09:00:0")


@pytest.mark.spec("OPR-04", "OPR-08")
async def test_an_answer_that_is_no_object_is_asked_for_again() -> None:
    """What stands before the API server may answer in its place, and not as it would; who waits for the Lease, or
    lists, ended with it."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        page = request.path == "/page" or len(asked) < 3
        return web.Response(text="<html>Please log in" if page else '{"kind": "Pod"}')

    async with server(answer) as api:
        assert await api.get("/object") == {"kind": "Pod"}
        assert asked == ["/object"] * 3
        with pytest.raises(ApiUnavailableError, match="the answer is no object: <html>Please log in"):
            await api.get("/page")


@pytest.mark.spec("OPR-02", "OPR-05")
@pytest.mark.parametrize(("status", "told"), [(500, True), (429, False), (503, False)])
async def test_what_fails_for_one_object_alone_is_told_of_that(status: int, told: bool) -> None:
    """Where an admission webhook is down the API server answers 500 for what it would be asked about: nothing of the
    cluster was looked after then, and the status said nothing."""
    subject = cluster()

    async def answer(request: web.Request) -> web.Response:
        if request.method == "GET":
            return web.json_response({"reason": "NotFound"}, status=404)
        return web.json_response({"reason": "InternalError", "message": "failed calling webhook"}, status=status)

    async with server(answer) as api:
        objects = KubeObjects(cast(Any, SimpleNamespace(api=api)))
        with pytest.raises((ApiError, ApiUnavailableError)) as raised:
            await objects.apply_owned(subject, others.bootstrap_service(subject))
    if told:
        assert isinstance(raised.value, ApiError)
        assert raised.value.message == "Service demo-bootstrap: failed calling webhook"
    else:
        assert isinstance(raised.value, ApiUnavailableError)
        assert raised.value.answer is None


@pytest.mark.spec("OPR-05", "OPR-06")
@pytest.mark.parametrize(("status", "times"), [(500, 2), (503, 5)])
async def test_what_was_answered_is_not_asked_as_often_as_what_was_not(status: int, times: int) -> None:
    """Each answer of a webhook that hangs takes ten seconds."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.json_response({"reason": "InternalError", "message": "context deadline exceeded"}, status=status)

    async with server(answer) as api:
        with pytest.raises(ApiUnavailableError):
            await api.merge("/object", {})
    assert len(asked) == times


@pytest.mark.spec("OPR-05", "OPR-06")
async def test_what_gives_no_answer_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five times were three minutes for one request, and an operator that looked stuck."""
    monkeypatch.setattr("ballast_operator.apply.kubernetes.REQUEST_TIMEOUT_SECONDS", 2.0)
    asked: list[str] = []
    end = asyncio.Event()

    async def hang(request: web.Request) -> web.Response:
        asked.append(request.path)
        await end.wait()
        return web.json_response({})

    async with server(hang) as api:
        with pytest.raises(ApiUnavailableError, match=r"GET /object: .*"):
            await api.get("/object")
        end.set()
    assert asked == ["/object"]


@pytest.mark.spec("OPR-05")
async def test_an_outage_is_one_line_for_all_that_could_not_be_written(caplog: pytest.LogCaptureFixture) -> None:
    """It was one for each of a thousand topics, again and again for as long as the outage lasted."""
    cache = Cache()
    for index in range(40):
        meta = {"namespace": "default", "uid": f"u{index}", "resourceVersion": "7", "generation": 1}
        body = {"metadata": {"name": f"t{index}", **meta}, "spec": {"clusterRef": {"name": "demo"}}}
        cache.put_topic(body)

    async def refuse(_: web.Request) -> web.Response:
        return web.json_response({"reason": "ServiceUnavailable", "message": "later"}, status=503)

    async with server(refuse) as api:
        events = Events(api, lambda: NOW)
        handler = TopicHandler(Key("default", "demo"), cache, Writer(api, cache), events)
        requeue = Requeue()
        await handler.handle([topic.key for topic in cache.topics], NOW, requeue)
    assert len(requeue.topics) == 40
    told = [line.getMessage() for line in caplog.records if "not written" in line.getMessage()]
    assert sum(int(re.findall(r" and (\d+) more", line + " and 0 more")[0]) + 1 for line in told) == 40
    assert len(told) <= AT_ONCE  # those that were under way when the first one failed


@pytest.mark.spec("OPR-05")
async def test_of_a_slow_api_so_much_is_asked_at_a_time_that_topics_keep_their_pace() -> None:
    """200 topics a second, of an API server that takes 150 ms for each request, are 30 at a time: eight were 53."""
    cache, held, enough = Cache(), 0, asyncio.Event()
    for index in range(100):
        meta = {"namespace": "default", "uid": f"u{index}", "resourceVersion": "7", "generation": 1}
        cache.put_topic({"metadata": {"name": f"t{index}", **meta}, "spec": {"clusterRef": {"name": "demo"}}})

    async def slow(_: web.Request) -> web.Response:
        """However long it takes until so many are asked at a time, nobody is answered before."""
        nonlocal held
        held += 1
        if held == 30:
            enough.set()
        with suppress(TimeoutError):
            await asyncio.wait_for(enough.wait(), 10)
        held -= 1
        return web.json_response({})

    async with server(slow) as api:
        handler = TopicHandler(Key("default", "demo"), cache, Writer(api, cache), Events(api, lambda: NOW))
        await handler.handle([topic.key for topic in cache.topics], NOW, Requeue())
        assert api.requests == {"PATCH": 100}
    assert enough.is_set()


@pytest.mark.spec("OPR-05")
@pytest.mark.parametrize("fails", [False, True])
async def test_what_kafka_did_not_do_in_time_is_looked_at_before_anything_is_told(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """Of each topic three statuses were written in the place of one, and all of them waited for these."""
    cache, events = Cache(), list[str]()
    meta = {"name": "orders", "namespace": "default", "uid": "u", "resourceVersion": "7", "generation": 1}
    _, topic = cache.put_topic({"metadata": meta, "spec": {"clusterRef": {"name": "demo"}, "partitions": 1}})
    assert topic is not None
    told = Told()
    handler = TopicHandler(topic.cluster, cache, cast(Any, told), cast(Any, None))

    async def observe(*_: Any) -> dict[Key, TopicFacts]:
        events.append("looks")
        if len(events) > 1:
            return {topic.key: TopicFacts(view=topic_view((0,)), config={}, intent=Intent("orders", create=True))}
        return {topic.key: TopicFacts(missing=True)}

    async def act(*_: Any) -> tuple[dict[Key, Outcome], set[Key]]:
        events.append("acts")
        if fails:
            raise KafkaUnavailableError("no answer")
        return {topic.key: Outcome("REQUEST_TIMED_OUT")}, set()

    monkeypatch.setattr(handler, "_observe", observe)
    monkeypatch.setattr(handler, "_act_on_kafka", act)
    requeue = Requeue()
    with pytest.raises(KafkaUnavailableError) if fails else nullcontext():
        await handler.handle([topic.key], NOW, requeue, cast(Any, object()), ledger())
    assert told.reasons == ({} if fails else {"orders": "Ready"})
    assert events == ["looks", "acts"] + ["looks"] * (not fails)
    assert requeue.topics == set()


@pytest.mark.spec("OPR-08", "OPR-21")
@pytest.mark.parametrize("goes", [True, False])
async def test_a_topic_that_kafka_did_not_delete_in_time_is_not_given_up(
    monkeypatch: pytest.MonkeyPatch, goes: bool
) -> None:
    """A controller under load drops what waited too long. The object was let go all the same, and the topic stayed."""
    cache, asked = Cache(), list[str]()
    there = topic_view((0,))
    meta = {"name": "orders", "namespace": "default", "uid": "u", "resourceVersion": "7", "generation": 1}
    going = {**meta, "deletionTimestamp": NOW, "finalizers": [FINALIZER]}
    spec = {"clusterRef": {"name": "demo"}, "deletionPolicy": "Delete"}
    _, topic = cache.put_topic({"metadata": going, "spec": spec, "status": {"topicId": there.id}})
    assert topic is not None
    told = Told()
    handler = TopicHandler(topic.cluster, cache, cast(Any, told), cast(Any, None))

    async def observe(*_: Any) -> dict[Key, TopicFacts]:
        return {topic.key: TopicFacts(view=there, config={})}

    async def act(_: Any, plans: Mapping[Key, TopicPlan], __: Any) -> tuple[dict[Key, Outcome], set[Key]]:
        asked.append(str(plans[topic.key].delete_id))
        return {topic.key: Outcome() if goes and len(asked) > 1 else Outcome("REQUEST_TIMED_OUT")}, set()

    monkeypatch.setattr(handler, "_observe", observe)
    monkeypatch.setattr(handler, "_act_on_kafka", act)
    requeue = Requeue()
    await handler.handle([topic.key], NOW, requeue, cast(Any, object()), ledger())
    assert asked == [there.id] * 2
    assert told.finalizers == ({"orders": False} if goes else {})
    assert requeue.topics == (set() if goes else {topic.key})


@pytest.mark.spec("OPR-05")
async def test_kafka_says_itself_what_it_did_not_do_in_time() -> None:
    """Both waited for 15 s: the operator had given up when the answer came, and told of a cluster that is away."""
    assert _create_request([CreateTopic("orders", 1, 1)]).timeout_ms <= REQUEST_TIMEOUT_MS - 5_000


@pytest.mark.spec("OPR-04", "OPR-33")
async def test_a_deletion_that_is_not_let_go_for_a_conflict_is_tried_again_after_a_moment() -> None:
    """Where the watch had lost what changed, it hung until all was compared."""
    cache = Cache()

    async def refuse(_: web.Request) -> web.Response:
        return web.json_response({"reason": "Conflict", "message": "the object has been modified"}, status=409)

    async with server(refuse) as api:
        shared = Shared(api, cache, Writer(api, cache), Events(api, lambda: NOW), Metrics(), lambda: NOW)
        finished = Finished(shared, Plans(Key("default", "demo"), shared), Refusals(shared.events))
        going = {"deletionTimestamp": NOW, "finalizers": [FINALIZER]}
        requeue = Requeue()
        assert await finished.conclude(
            reassignment(drainBrokers=[1], meta=going, status={"phase": "Succeeded"}), requeue
        )
        assert requeue.reassignments_seconds == LOOK_SECONDS


@pytest.mark.spec("OPR-05", "OPR-33")
async def test_what_somebody_else_has_changed_is_looked_at_when_that_is_heard_of_or_after_a_moment() -> None:
    """Where a watch had gone silent it was looked at ten times a second, with all that it moves, until it had told."""
    cache, seen = Cache(), view({"orders": topic_view((0, 1))})

    async def refuse(_: web.Request) -> web.Response:
        return web.json_response({"reason": "Conflict", "message": "the object has been modified"}, status=409)

    async with server(refuse) as api:
        events = Events(api, lambda: NOW)
        shared = Shared(api, cache, Writer(api, cache), events, Metrics(), lambda: NOW)
        statuses = ReassignmentStatuses(shared, Plans(Key("default", "demo"), shared), Refusals(events))
        subject = reassignment(drainBrokers=[1])
        plan = keep(Plan((move(((0, "/a"), (1, "/a")), ((0, "/a"), (2, "/b"))),)))
        begins = next_step(ReassignmentFacts(subject, plan, seen))
        for step in (begins, replace(begins, starts=False, holds_throttles=False)):
            requeue = Requeue()
            assert not await statuses.write(Case(subject, plan=plan, step=step), requeue)
            assert requeue.reassignments_seconds == LOOK_SECONDS


@pytest.mark.spec("OPR-06")
async def test_why_the_lease_is_not_renewed_is_told_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was said every six seconds that the API server does not answer, also where it answered."""
    monkeypatch.setattr("ballast_operator.leader.RENEW_DEADLINE_SECONDS", 2.05)
    monkeypatch.setattr("ballast_operator.leader.WAIT_SECONDS", 0.01)
    monkeypatch.setattr("ballast_operator.apply.kubernetes.FIRST_DELAY_SECONDS", 5.0)
    caplog.set_level("INFO")
    asked = asyncio.Semaphore(0)

    async def refuse(_: web.Request) -> web.Response:
        asked.release()
        return web.json_response({"reason": "ServiceUnavailable", "message": "etcd has no leader"}, status=503)

    async with server(refuse) as api:
        running = asyncio.create_task(Leader(api, "default", "lease", lambda _: None).run())
        for _ in range(5):
            await asked.acquire()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    told = [line.getMessage() for line in caplog.records if "Lease" in line.getMessage()]
    assert told == ["the Lease could not be renewed: 503 ServiceUnavailable: etcd has no leader"]


@pytest.mark.spec("OPR-41", "OPR-44")
@pytest.mark.parametrize(
    ("status", "deleted", "goes"), [(201, 0, True), (404, 0, True), (429, 0, False), (500, 1, True), (403, 1, True)]
)
async def test_a_pod_goes_unless_its_budget_keeps_it(status: int, deleted: int, goes: bool) -> None:
    """A node that was being drained and a change took one broker each at the same moment. What cannot be asked so (two
    budgets for a pod, a Role of before) is as it was."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(f"{request.method} {request.path}")
        if request.method == "DELETE":
            return web.json_response({})
        body = await request.json()
        assert (body["kind"], body["deleteOptions"]) == ("Eviction", {"preconditions": {"uid": "u"}})
        return web.json_response({"reason": "x", "message": "y"}, status=status, headers={"Retry-After": "10"})

    async with server(answer) as api:
        objects = KubeObjects(cast(Any, SimpleNamespace(api=api)))
        assert await objects.evict(cluster(), PodFacts("demo-0", "u", 0)) is goes
    pod = "/api/v1/namespaces/default/pods/demo-0"
    assert asked == [f"POST {pod}/eviction"] + [f"DELETE {pod}"] * deleted
