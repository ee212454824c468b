"""What Kubernetes refuses, told to people where trying again does not change it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ballast_operator.apply.kubernetes import ApiError, ApiUnavailableError
from ballast_operator.status import NotServedError, Reason


def refusal_in(error: ApiError | ApiUnavailableError) -> str | None:
    """What stands in the way of this request and of no other, if that is so."""
    answer = error if isinstance(error, ApiError) else error.answer
    if answer is None or (isinstance(error, ApiError) and not error.refused):
        return None
    return answer.message.rstrip(".")


@contextmanager
def refusal_told(reason: Reason, **values: str) -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        if not error.refused:
            raise
        raise NotServedError(reason.says(**values, error=error.message.rstrip("."))) from error
