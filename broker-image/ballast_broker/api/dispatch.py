"""Dispatches a request frame to its handler and turns the result into a reply. One per kind of listener.

A request that cannot be parsed (unknown key or version, malformed body) closes the connection, as in Kafka: there is no
way to answer it. What a handler rejects becomes a response with that error. A bug in a handler is logged and answered
with UNKNOWN_SERVER_ERROR; it never takes the loop down. Loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, cast

from ballast_broker.api.authorizer import CLUSTER, Operation
from ballast_broker.api.client_quotas import NO_NAME, ByteQuotas, ClientQuotas, Throttle
from ballast_broker.api.context import RequestContext
from ballast_broker.api.fetch import Fetch
from ballast_broker.api.fetch_answer import Quota
from ballast_broker.api.produce import Produce
from ballast_broker.api.registry import Api, Handler, handler_of
from ballast_broker.api.request_time import RequestTime, Timed, is_between_brokers
from ballast_broker.api.services import BrokerServices, ControllerServices
from ballast_broker.controller.commands.mutations import STRICT_SINCE
from ballast_broker.metrics.requests import RequestMetrics
from ballast_broker.net_reply import Peer, Pending, Reply
from ballast_broker.turns import InTurns, in_turns
from ballast_wire.entries import entries_in, things_in
from ballast_wire.error_codes import codes_in, errors_in
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.failures import failure_response
from ballast_wire.fast.reader import MOST_ENTRIES, MalformedRequest
from ballast_wire.headers import (
    API_VERSIONS_KEY,
    frame_response,
    is_flexible,
    parse_request_header,
    skip_header_tags,
)
from ballast_wire.messages import message
from ballast_wire.nulls import misplaced_null
from ballast_wire.steps import decoding, encoding

log = logging.getLogger(__name__)

PRODUCE: Final = 0
FETCH: Final = 1
# Limit of requests without records: one of this size takes a second or two to parse, blocking everything else.
MOST_BYTES: Final = 4 * 1024 * 1024
MOST_FORWARDED_BYTES: Final = 2 * MOST_BYTES  # what a broker accepts may be larger in an envelope or another version
MANY_BYTES: Final = 32 * 1024  # larger requests are parsed in turns: five milliseconds
MANY: Final = 1000  # responses with more entries are encoded in turns
_start_of: Final = struct.Struct(">hhih").unpack_from  # key, version, correlation id, length of the client id
_HEADER_START_BYTES: Final = 10


Answer = tuple[bytes] | None


class Dispatcher:
    """`apis`: the APIs served here; `handlers` may replace some handlers (controller listener). `is_of_nodes`: whether
    a request is from a node of the cluster and so exempt from quotas.
    """

    def __init__(
        self,
        broker: BrokerServices | ControllerServices,
        apis: Mapping[int, Api],
        metrics: RequestMetrics,
        monotonic: Callable[[], float],
        *,
        produce: Produce | None = None,
        fetch: Fetch | None = None,
        handlers: Callable[[Api], Handler] = lambda api: handler_of(api.module),
        is_of_nodes: Callable[[RequestContext, Any], bool] = lambda context, request: (
            is_between_brokers(context.api_key, context.version, request)
            and context.may(Operation.CLUSTER_ACTION, CLUSTER)
        ),
    ) -> None:
        self._broker = cast(BrokerServices, broker)  # a controller's handlers use only what it has
        self._quotas: ClientQuotas = broker.client_quotas
        self._is_of_nodes = is_of_nodes
        self._apis = apis
        self._metrics = metrics
        self._produce = produce
        self._fetch = fetch
        self._handlers = handlers
        self._tasks: set[asyncio.Task[Any]] = set()
        self._now = monotonic

    def dispatch(self, peer: Peer, frame: memoryview) -> Reply:
        began = self._now()
        try:
            key, version, correlation_id, client_id_bytes = _start_of(frame)
        except struct.error as error:
            raise MalformedRequest(f"request header: {error}") from error
        if key == PRODUCE and self._produce is not None:
            body = _HEADER_START_BYTES + client_id_bytes if client_id_bytes > 0 else _HEADER_START_BYTES
            throttle = self._throttle(peer, frame, began) if self._quotas.on_produce else None
            reply = self._produce.handle(frame, body, version, correlation_id, peer, throttle)
            if throttle is not None and throttle.time is not None:
                throttle.time.ends()
            if type(reply) is Pending:
                self._measure_later(reply, "Produce", began)
            else:
                self._metrics.produce.note(self._now() - began)
            return reply
        if key == FETCH and self._fetch is not None:
            body = _HEADER_START_BYTES + client_id_bytes if client_id_bytes > 0 else _HEADER_START_BYTES
            quota = self._fetch_quota(peer, frame, began) if self._quotas.on_fetch else None
            reply = self._fetch.handle(frame, body, version, correlation_id, peer, quota)
            if quota is not None and quota.time is not None:
                quota.time.ends()
            if type(reply) is Pending:
                self._measure_later(reply, "Fetch", began)
            else:
                self._metrics.fetch.note(self._now() - began)
            return reply
        client_id, body = parse_request_header(frame)[3:]
        context = RequestContext(self._broker, key, version, correlation_id, client_id, peer)
        return self._general(context, frame, body, began)

    def _throttle(self, peer: Peer, frame: memoryview, began: float) -> Throttle | None:
        """Charge a produce to its client's quota on arrival; a client over its quota is not read from for a while."""
        client_id = parse_request_header(frame).client_id or NO_NAME
        time = self._time_of(peer, client_id, began)
        rate = self._quotas.produce.rate_of(peer.principal.name, client_id)
        wait_s = 0.0
        if rate is not None:
            rate.record(len(frame))
            wait_s = rate.wait_s()
            if wait_s:
                self._hold(peer, wait_s, self._quotas.produce)
        return Throttle(self._broker.clock, wait_s, time) if wait_s or time is not None else None

    def _fetch_quota(self, peer: Peer, frame: memoryview, began: float) -> Quota | None:
        client_id = parse_request_header(frame).client_id or NO_NAME
        time = self._time_of(peer, client_id, began)
        rate = self._quotas.fetch.rate_of(peer.principal.name, client_id)
        if rate is None and time is None:
            return None
        return Quota(rate, lambda wait_s: self._hold(peer, wait_s, self._quotas.fetch), time)

    @staticmethod
    def _hold(peer: Peer, wait_s: float, quotas: ByteQuotas) -> None:
        quotas.note(round(wait_s * 1000))
        peer.hold(wait_s)

    def _time_of(self, peer: Peer, client_id: str, began: float) -> RequestTime | None:
        """What charges this client's request time from now on; None: unlimited."""
        quotas = self._quotas.requests
        rate = quotas.rate_of(peer.principal.name, client_id)
        time = cast("RequestTime | None", peer.time)
        if rate is None:
            peer.time = None
            return None
        if time is None or time.rate is not rate:
            time = peer.time = RequestTime(quotas, rate, self._now, peer)
        time.goes_on_since(began)
        return time

    def _measure_later(self, reply: Pending, name: str, began: float) -> None:
        reply.future.add_done_callback(lambda _: self._metrics.answered(name, self._now() - began))

    def _general(self, context: RequestContext, frame: memoryview, body: int, began: float) -> Reply:
        api = self._apis.get(context.api_key)
        if api is None:
            raise MalformedRequest(f"API key {context.api_key} is not known here")
        if not api.lowest <= context.version <= api.highest:
            if context.api_key != API_VERSIONS_KEY:
                raise MalformedRequest(f"{api.name} version {context.version} is not supported")
            request = None  # its handler answers with the supported versions, in version 0
        elif len(frame) > MANY_BYTES and not self._quotas.on_requests:
            data = self._body(api, context.version, frame, body)
            return self._later(self._decode_and_run(api, data, context, began))
        else:
            request = self._decode(api, context.version, self._body(api, context.version, frame, body))
        time = None
        # Who has not logged in names any client id: as in Kafka, nobody's time is used up by that.
        if self._quotas.on_requests and context.connection.is_known and not self._is_of_nodes(context, request):
            time = self._time_of(context.connection, context.client_id or NO_NAME, began)
        work = self._run(api, request, context, began, time)
        reply = self._later(work if time is None else Timed(work, time))
        if time is not None:
            time.ends()
        return reply

    def _later(self, work: Coroutine[Any, Any, Answer]) -> Pending:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return Pending(task, pipelined=False)

    def _body(self, api: Api, version: int, frame: memoryview, body: int) -> bytes:
        if len(frame) > (MOST_BYTES if self._from_clients else MOST_FORWARDED_BYTES):
            raise MalformedRequest(f"{api.name} version {version} of {len(frame)} bytes")
        if is_flexible(api.name + "Request", version):
            body = skip_header_tags(frame, body)
        return bytes(frame[body:])

    def _decode(self, api: Api, version: int, data: bytes) -> Any:
        with _reading(api, version):
            request = message(api.name + "Request").decode(data, version=version)
        self._check_nulls(api, version, request)
        self._check_entries(api, version, request)
        return request

    async def _decode_and_run(self, api: Api, data: bytes, context: RequestContext, began: float) -> Answer:
        """Parse in turns, then run: nobody else holds the request, so other tasks may run meanwhile."""
        with _reading(api, context.version):
            request = await in_turns(decoding(message(api.name + "Request"), data, context.version))
        self._check_nulls(api, context.version, request)
        await asyncio.sleep(0)
        self._check_entries(api, context.version, request)
        await asyncio.sleep(0)
        return await self._run(api, request, context, began, None)

    @staticmethod
    def _check_nulls(api: Api, version: int, request: Any) -> None:
        null = misplaced_null(request, version)
        if null is not None:
            raise MalformedRequest(f"{api.name} version {version}: {null} must not be null")

    def _check_entries(self, api: Api, version: int, request: Any) -> None:
        if entries_in(request, version, MOST_ENTRIES) > MOST_ENTRIES:
            raise MalformedRequest(f"{api.name} version {version} names more than {MOST_ENTRIES} things")

    @property
    def _from_clients(self) -> bool:
        """False on a controller's listener: most requests there come from brokers, some forwarded."""
        return self._produce is not None

    async def _run(
        self, api: Api, request: Any, context: RequestContext, began: float, time: RequestTime | None
    ) -> Answer:
        try:
            response = await self._handlers(api)(request, context)
        except ApiError as refused:
            response = failure_response(api.name, request, context.version, refused.code, refused.message)
        except MalformedRequest:
            raise  # closes the connection
        except Exception:
            log.exception("%s version %d from %s failed", api.name, context.version, context.host)
            response = failure_response(api.name, request, context.version, ErrorCode.UNKNOWN_SERVER_ERROR, None)
        self._metrics.answered(api.name, self._now() - began)
        if response is None:
            return None
        version = response.version if response.version is not None else context.version
        self._tell(response, context, time)
        data: bytes | bytearray  # annotated, since mypyc infers the type from the first assignment
        if things_in(response, version, MANY) > MANY:
            data = await self._encode_in_turns(api, response, version)
        else:
            for code in errors_in(response, version):
                self._metrics.refused(api.name, code)
            data = response.encode(version=version)
        flexible = is_flexible(api.name + "Request", version)
        return (frame_response(context.api_key, context.correlation_id, data, flexible=flexible),)

    async def _encode_in_turns(self, api: Api, response: Any, version: int) -> bytearray:
        """Encode in turns: nobody else holds the response."""
        async for code in InTurns(codes_in(response, version)):
            if code:
                self._metrics.refused(api.name, code)
        return await in_turns(encoding(response, version))

    def _tell(self, response: Any, context: RequestContext, time: RequestTime | None) -> None:
        """Apply the throttle time, from the request time quota or as told by the controller."""
        told_ms = getattr(response, "throttle_time_ms", 0)
        if told_ms:
            context.connection.hold(told_ms / 1000)
            if context.api_key in STRICT_SINCE:
                self._quotas.mutations.note(told_ms)
        if time is not None:
            throttle_ms = time.tell_ms()
            if throttle_ms > told_ms and hasattr(response, "throttle_time_ms"):
                response.throttle_time_ms = throttle_ms

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()


@contextmanager
def _reading(api: Api, version: int) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # malformed bytes may make the codec raise anything
        raise MalformedRequest(f"{api.name} version {version} cannot be read: {error}") from error
