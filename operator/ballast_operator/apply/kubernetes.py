"""Reads and changes Kubernetes objects over the HTTP API. Decides nothing.

Used from the operator's event loop only. Transient failures (429, 500, 502 to 504, a lost connection, no JSON) are
retried a few times; every other refusal is an `ApiError` that the caller has to handle. Status is written as a
merge patch with the resourceVersion that was observed, so a concurrent write is never overwritten.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any

import aiohttp

from ballast_operator.clock import ServerClock, monotonic
from ballast_operator.kubeconfig import ApiAccess
from ballast_operator.model.meta import GROUP, VERSION, Key
from ballast_operator.pulse import beat

Object = dict[str, Any]

FIELD_MANAGER = "ballast-operator"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
ATTEMPTS = 5
# A 500 concerns this request alone (a webhook is down, say), and retrying soon seldom helps.
ANSWERED_ATTEMPTS = 2
FIRST_DELAY_SECONDS = 0.1
MAX_DELAY_SECONDS = 5.0
# kube-apiserver itself admits 200 mutating requests at a time.
MAX_PARALLEL_REQUESTS = 64
# A little more than the longest webhook timeout that an API server permits.
REQUEST_TIMEOUT_SECONDS = 35.0
TOKEN_LIFE_SECONDS = 60.0
PAGE = 500


class ApiError(Exception):
    """The API server refused a request."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        known = f" {reason}" if reason != str(status) else ""
        super().__init__(f"{status}{known}: {message}")
        self.status = status
        self.reason = reason
        self.message = message

    @property
    def not_found(self) -> bool:
        return self.status == 404

    @property
    def conflict(self) -> bool:
        """Somebody else changed the object since it was observed."""
        return self.status == 409 and self.reason != "AlreadyExists"

    @property
    def refused(self) -> bool:
        """A refusal that lasts until somebody fixes its cause."""
        return self.status in (400, 401, 403, 422)

    @property
    def already_exists(self) -> bool:
        return self.reason == "AlreadyExists"


class ApiUnavailableError(Exception):
    """The API server could not be reached, or every retry failed. `answer` is its last error if that was about the
    request itself: such a failure may concern one object alone, for example while an admission webhook is down."""

    def __init__(self, message: str, answer: ApiError | None = None) -> None:
        super().__init__(message)
        self.answer = answer


def path_of(api_version: str, plural: str, namespace: str | None, name: str | None = None, sub: str = "") -> str:
    """The URL path of an object or a collection."""
    root = "/api/v1" if api_version == "v1" else f"/apis/{api_version}"
    parts = [root]
    if namespace is not None:
        parts.append(f"namespaces/{namespace}")
    parts.append(plural)
    if name is not None:
        parts.append(name)
    if sub:
        parts.append(sub)
    return "/".join(parts)


def ballast_path(plural: str, key: Key, sub: str = "") -> str:
    return path_of(f"{GROUP}/{VERSION}", plural, key.namespace, key.name, sub)


class KubernetesApi:
    """A session with one API server. `requests` counts requests by verb, for metrics and tests; `failure` is the error
    of the most recent attempt, for callers that give up before the retries are exhausted."""

    def __init__(self, access: ApiAccess) -> None:
        self._access = access
        self._session: aiohttp.ClientSession | None = None
        self._parallel = asyncio.Semaphore(MAX_PARALLEL_REQUESTS)
        self._token: tuple[float, str | None] = (-TOKEN_LIFE_SECONDS, None)
        self.requests: dict[str, int] = {}
        self.failure = ""
        self.clock = ServerClock()

    async def get(self, path: str) -> Object:
        return await self._request("GET", path)

    async def find(self, path: str) -> Object | None:
        """The object, or None if the API server says that it does not exist."""
        try:
            return await self.get(path)
        except ApiError as error:
            if error.not_found:
                return None
            raise

    async def items(self, path: str, label_selector: str = "") -> AsyncIterator[Object]:
        """All objects of a collection, page by page."""
        token = ""
        while True:
            query = {"limit": str(PAGE)} | ({"labelSelector": label_selector} if label_selector else {})
            page = await self._request("GET", path, query=query | ({"continue": token} if token else {}))
            for item in page.get("items") or ():
                yield item
            token = (page.get("metadata") or {}).get("continue") or ""
            if not token:
                return

    async def create(self, path: str, body: Mapping[str, Any]) -> Object:
        return await self._request("POST", path, body, query={"fieldManager": FIELD_MANAGER})

    async def apply(self, path: str, body: Mapping[str, Any], manager: str = FIELD_MANAGER) -> Object:
        """Server-side apply: `manager` owns the fields in `body`, and only those."""
        query = {"fieldManager": manager, "force": "true"}
        return await self._request("PATCH", path, body, query=query, content_type=APPLY_PATCH)

    async def replace(self, path: str, body: Mapping[str, Any]) -> Object:
        return await self._request("PUT", path, body, query={"fieldManager": FIELD_MANAGER})

    async def merge(self, path: str, body: Mapping[str, Any]) -> Object:
        query = {"fieldManager": FIELD_MANAGER}
        return await self._request("PATCH", path, body, query=query, content_type=MERGE_PATCH)

    async def delete(
        self, path: str, uid: str | None = None, propagation: str = "Background", grace_seconds: int | None = None
    ) -> None:
        """Delete an object if it still has this uid; it is no error if it is already gone."""
        body: Object = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation}
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        try:
            await self._request("DELETE", path, body)
        except ApiError as error:
            if not error.not_found and not (error.status == 409 and uid is not None):
                raise

    async def evict(self, path: str, uid: str) -> bool:
        """Evict a pod if it still has this uid; False if a disruption budget forbids it. The API server counts the
        evictions of all clients, so that of several concurrent ones only as many succeed as the budget allows."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": path.rpartition("/")[2]},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        try:
            # A 500 means that several budgets cover the pod, which retrying does not change.
            await self._request("POST", f"{path}/eviction", body, answers=(429, 500))
        except ApiError as error:
            if error.status == 429:
                return False
            if not error.not_found and error.status != 409:
                raise
        return True

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        answers: Collection[int] = (),
    ) -> Object:
        """`answers` are statuses that are raised at once instead of being retried."""
        self.requests[method] = self.requests.get(method, 0) + 1
        failure, answer, answered, began = "no attempt was made", None, 0, monotonic()
        self.failure = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                if monotonic() - began > REQUEST_TIMEOUT_SECONDS:
                    break  # the caller tries again later; other requests may succeed meanwhile
                await asyncio.sleep(min(MAX_DELAY_SECONDS, FIRST_DELAY_SECONDS * 4 ** (attempt - 1)))
            try:
                async with self._parallel:
                    status, text, retry_after = await self._send(method, path, body, query, content_type)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                self.failure = failure = str(error) or type(error).__name__
                answer = None
                continue
            finally:
                beat()
            if status < 400:
                try:
                    return dict(json.loads(text)) if text else {}
                except ValueError:
                    # Something else answered (a proxy, say); the API server may be back in a moment.
                    failure, answer = f"the answer is no object: {text[:100].decode(errors='replace')}", None
                    continue
            if status in answers or status not in (429, 500, 502, 503, 504):
                raise _error(status, text)
            told = _error(status, text)
            self.failure = failure = str(told)
            answer = told if status == 500 else None
            answered += answer is not None
            if answered == ANSWERED_ATTEMPTS:
                break
            if retry_after:
                await asyncio.sleep(min(MAX_DELAY_SECONDS, retry_after))
        raise ApiUnavailableError(f"{method} {path}: {failure}", answer)

    async def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        query: Mapping[str, str] | None,
        content_type: str,
    ) -> tuple[int, bytes, float]:
        session = self._session or self._open()
        headers = {"Content-Type": content_type, "Accept": "application/json"}
        token = self._bearer()
        if token:
            headers["Authorization"] = f"Bearer {token}"
        data = None if body is None else json.dumps(body).encode()
        async with session.request(
            method, self._access.server + path, data=data, params=query, headers=headers
        ) as answer:
            self.clock.heard(answer.headers.get("Date"))
            text = await answer.read()
            after = answer.headers.get("Retry-After", "")
            return answer.status, text, float(after) if after.isdigit() else 0.0

    def _open(self) -> aiohttp.ClientSession:
        context = self._access.ssl_context()
        auth = None
        if self._access.username:
            auth = aiohttp.BasicAuth(self._access.username, self._access.password or "")
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=MAX_PARALLEL_REQUESTS, ssl=context if context else True),
            timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_SECONDS),
            auth=auth,
        )
        return self._session

    def _bearer(self) -> str | None:
        now = asyncio.get_running_loop().time()
        if now - self._token[0] >= TOKEN_LIFE_SECONDS:
            self._token = (now, self._access.bearer_token())
        return self._token[1]


def _error(status: int, text: bytes) -> ApiError:
    try:
        body = json.loads(text)
        return ApiError(status, str(body.get("reason") or status), str(body.get("message") or ""))
    except (ValueError, AttributeError):
        return ApiError(status, str(status), text[:200].decode(errors="replace").strip())
