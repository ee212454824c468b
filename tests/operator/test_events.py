"""Events as somebody with kubectl finds them."""

from __future__ import annotations

from typing import Any, cast

import pytest
from aiohttp import web
from tests.operator.making import NOW, reassignment, topic
from tests.operator.test_api_answers import server
from tests.operator.world import World

from ballast_operator import events as events_module
from ballast_operator.apply.kubernetes import KubernetesApi, path_of
from ballast_operator.events import REPEAT_SECONDS, WARNING, Events

pytestmark = [pytest.mark.spec("OPR-03"), pytest.mark.timeout(120)]
LATER = "2026-01-02T04:04:05Z"
Found = list[tuple[int, str, str]]


class Sender:
    """Sends what happens to one KafkaTopic, on a clock of its own."""

    def __init__(self, world: World, api: KubernetesApi, name: str) -> None:
        self._world, self._name = world, name
        self.seconds, self.now = 1_000.0, NOW
        self._events = Events(api, lambda: self.now)

    def happens(self, times: int = 1) -> Found:
        """(count, first time, last time) of each Event that there is then."""
        for _ in range(times):
            self._events.send(topic(name=self._name), WARNING, "InvalidConfig", "words")
        while not self._events._queue.empty():
            self._world.run(self._events._post(self._events._queue.get_nowait()))
        return [(one["count"], one["firstTimestamp"], one["lastTimestamp"]) for one in self.found()]

    def found(self) -> list[dict[str, Any]]:
        every = self._world.objects("v1", "events")
        return [one for one in every if one["involvedObject"]["name"] == self._name]


@pytest.fixture
def sender(ballast_world: World, monkeypatch: pytest.MonkeyPatch) -> Sender:
    found = Sender(ballast_world, ballast_world._stack.api, "counted")
    monkeypatch.setattr(events_module, "monotonic", lambda: found.seconds)
    return found


def test_what_comes_again_is_counted_by_the_event_that_told_of_it(ballast_world: World, sender: Sender) -> None:
    """Each ten minutes there was another one, as if it were something else."""
    assert sender.happens(3) == [(1, NOW, NOW)]
    sender.seconds += REPEAT_SECONDS
    sender.now = LATER
    assert sender.happens() == [(4, NOW, LATER)]

    (known,) = sender.found()
    name = known["metadata"]["name"]
    ballast_world.api("delete", path_of("v1", "events", "default", name))  # as Kubernetes does, an hour after
    sender.seconds += REPEAT_SECONDS
    assert sender.happens() == [(5, NOW, LATER)]
    ballast_world.api("delete", path_of("v1", "events", "default", name))


async def test_where_the_role_is_one_of_before_it_is_told_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """That one may create Events and not change them."""
    monkeypatch.setattr("ballast_operator.events.REPEAT_SECONDS", 0.0)
    counts: list[int] = []

    async def answer(request: web.Request) -> web.Response:
        if request.method == "PATCH":
            return web.json_response({"reason": "Forbidden"}, status=403)
        counts.append((await request.json())["count"])
        return web.json_response({}, status=201)

    async with server(answer) as api:
        events = Events(api, lambda: NOW)
        for _ in range(2):
            events.send(topic(), WARNING, "InvalidConfig", "words")
            await events._post(events._queue.get_nowait())
    assert counts == [1, 2]


def test_what_a_person_has_to_mend_of_a_topic_is_told_and_that_it_is_mended(ballast_world: World) -> None:
    """Of KafkaTopics that were refused there were no Events at all."""

    def told() -> set[tuple[str, str]]:
        every = ballast_world.objects("v1", "events")
        return {(one["type"], one["reason"]) for one in every if one["involvedObject"]["name"] == "mended"}

    ballast_world.topic("mended", partitions=1, config={"retention.ms": "soon"})
    refused = {("Warning", "InvalidConfig")}
    ballast_world.until("it is told that it is refused", lambda: told() == refused)
    ballast_world.topic("mended", partitions=1)
    ballast_world.until("and that it is not any more", lambda: told() == {*refused, ("Normal", "Ready")})
    ballast_world.topic("well", partitions=1)
    ballast_world.until_ready("KafkaTopic", "well")
    assert not [one for one in ballast_world.objects("v1", "events") if one["involvedObject"]["name"] == "well"]
    for name in ("mended", "well"):
        ballast_world.delete("KafkaTopic", name)


def test_thousands_of_topics_leave_room_for_the_events_of_others() -> None:
    events = Events(cast(KubernetesApi, None), lambda: NOW)
    for index in range(2_000):
        events.send(topic(name=f"t-{index}"), WARNING, "NotAuthorized", "words")
    events.send(reassignment(), WARNING, "Failed", "words")
    waiting = [events._queue.get_nowait() for _ in range(events._queue.qsize())]
    assert (len(waiting), waiting[-1]["reason"], events.dropped) == (501, "Failed", 1_500)
