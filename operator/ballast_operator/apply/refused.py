"""What Kubernetes refuses, told to people where trying again does not change it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ballast_operator.apply.kubernetes import ApiError, ApiUnavailableError
from ballast_operator.status import CLUSTER, NotServedError, Reason, Verdict

# One object that nobody may change, as long as that stays so, is tried again so seldom.
TRY_AGAIN_SECONDS = 15.0
# What is refused may take its time: a webhook that does not answer is waited for, and a look may not take for ever.
LONGEST_SECONDS = 30.0


def answer_in(error: ApiError | ApiUnavailableError) -> ApiError | None:
    """What the API server says of this request and of no other; None where it is away."""
    return error if isinstance(error, ApiError) else error.answer


def refusal_in(error: ApiError | ApiUnavailableError) -> str | None:
    """That, where trying again at once does not change it."""
    answer = answer_in(error)
    lasts = answer is not None and (answer.refused or answer is not error)
    return answer.message.rstrip(".") if answer is not None and lasts else None


def message_of(error: ApiError | ApiUnavailableError) -> str:
    answer = answer_in(error)
    return answer.message if answer is not None else str(error)


def unserved(error: ApiError | ApiUnavailableError) -> Verdict | None:
    """What a KafkaCluster tells of it; None where it passes by itself, as a conflict does."""
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
