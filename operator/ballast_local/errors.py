"""The errors of the Kubernetes API: an exception that carries its Status object.

Every refusal reaches the client as a `Status` with the code, reason and details that client libraries look at. PURE;
any task may raise these.
"""

from collections.abc import Mapping, Sequence
from typing import Any

Obj = dict[str, Any]


class ApiError(Exception):
    """The request is answered with a Status instead of an object."""

    def __init__(self, code: int, reason: str, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = {name: value for name, value in (details or {}).items() if value not in ("", [])}

    def status(self) -> Obj:
        details = {"details": self.details} if self.details else {}
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            **({"reason": self.reason} if self.reason else {}),
            **details,
            "code": self.code,
        }


def not_found(group: str, plural: str, name: str) -> ApiError:
    qualified = f"{plural}.{group}" if group else plural
    details = {"name": name, "group": group, "kind": plural}
    return ApiError(404, "NotFound", f'{qualified} "{name}" not found', details)


def no_such_path() -> ApiError:
    return ApiError(404, "NotFound", "the server could not find the requested resource")


def already_exists(group: str, plural: str, name: str, going: bool = False) -> ApiError:
    qualified = f"{plural}.{group}" if group else plural
    details = {"name": name, "group": group, "kind": plural}
    why = "object is being deleted: " if going else ""
    return ApiError(409, "AlreadyExists", f'{why}{qualified} "{name}" already exists', details)


def conflict(group: str, plural: str, name: str, why: str) -> ApiError:
    qualified = f"{plural}.{group}" if group else plural
    details = {"name": name, "group": group, "kind": plural}
    return ApiError(409, "Conflict", f'Operation cannot be fulfilled on {qualified} "{name}": {why}', details)


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def cause(reason: str, message: str, field: str) -> Obj:
    return {"reason": reason, "message": message, "field": field}


def invalid(group: str, kind: str, name: str, causes: Sequence[Mapping[str, Any]]) -> ApiError:
    qualified = f"{kind}.{group}" if group else kind
    parts = [f"{one['field']}: {one['message']}" for one in causes]
    text = parts[0] if len(parts) == 1 else "[" + ", ".join(parts) + "]"
    details = {"name": name, "group": group, "kind": kind, "causes": [dict(one) for one in causes]}
    return ApiError(422, "Invalid", f'{qualified} "{name}" is invalid: {text}', details)


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def forbidden(group: str, plural: str, name: str, why: str) -> ApiError:
    qualified = f"{plural}.{group}" if group else plural
    details = {"name": name, "group": group, "kind": plural}
    return ApiError(403, "Forbidden", f'{qualified} "{name}" is forbidden: {why}', details)


def expired(message: str) -> ApiError:
    return ApiError(410, "Expired", message)


def not_implemented(sentence: str) -> ApiError:
    return ApiError(501, "NotImplemented", f"the embedded Kubernetes API does not have this: {sentence}")


def method_not_allowed(method: str) -> ApiError:
    return ApiError(405, "MethodNotAllowed", f"the server does not allow {method} on the requested resource")


def unsupported_media(accepted: str) -> ApiError:
    message = f"the body of the request was in an unknown format - accepted media types include: {accepted}"
    return ApiError(415, "UnsupportedMediaType", message)
