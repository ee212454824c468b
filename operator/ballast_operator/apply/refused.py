"""What Kubernetes refuses, told to people where trying again does not change it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ballast_operator.apply.kubernetes import ApiError
from ballast_operator.status import NotServedError, Reason


@contextmanager
def refusal_told(reason: Reason, **values: str) -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        if not error.refused:
            raise
        raise NotServedError(reason.says(**values, error=error.message.rstrip("."))) from error
