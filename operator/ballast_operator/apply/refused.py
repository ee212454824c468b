"""Turns refusals of the Kubernetes API that retrying does not cure into verdicts shown in a status."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ballast_operator.apply.kubernetes import ApiError, ApiUnavailableError
from ballast_operator.status import CLUSTER, NotServedError, Reason, Verdict

# How often a write is retried for an object that the API server refuses to change.
TRY_AGAIN_SECONDS = 15.0
# A refusal may be slow (the API server waits for a webhook that hangs), and a cycle must not take forever.
LONGEST_SECONDS = 30.0


def answer_in(error: ApiError | ApiUnavailableError) -> ApiError | None:
    """The API server's error about this very request; None if the server is unavailable."""
    return error if isinstance(error, ApiError) else error.answer


def refusal_in(error: ApiError | ApiUnavailableError) -> str | None:
    """The message of `answer_in`, if retrying at once does not help; else None."""
    answer = answer_in(error)
    lasts = answer is not None and (answer.refused or answer is not error)
    return answer.message.rstrip(".") if answer is not None and lasts else None


def message_of(error: ApiError | ApiUnavailableError) -> str:
    answer = answer_in(error)
    return answer.message if answer is not None else str(error)


def unserved(error: ApiError | ApiUnavailableError) -> Verdict | None:
    """The verdict for the KafkaCluster's status; None if the error passes by itself, as a conflict does."""
    refusal = refusal_in(error)
    if refusal is not None:
        return CLUSTER["KubernetesRefused"].says(error=refusal)
    if answer_in(error) is None:
        return CLUSTER["KubernetesSilent"].says(error=str(error).rstrip("."))
    return None


@contextmanager
def refusal_told(reason: Reason, **values: str) -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        if not error.refused:
            raise
        raise NotServedError(reason.says(**values, error=error.message.rstrip("."))) from error
