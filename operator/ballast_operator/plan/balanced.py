"""Derives the condition Balanced from the last result of the rebalance job. PURE.

True: nothing to move. False: a proposal waits or runs, or no move that is allowed helps. Unknown: the job refused to
plan. Reason and message are the job's own, listed in docs/rebalance.md.
"""

from __future__ import annotations

from ballast_operator.model.cluster import KafkaCluster
from ballast_operator.model.meta import Condition
from ballast_operator.status import FALSE, MAX_MESSAGE, TRUE, UNKNOWN

BALANCED = "Balanced"
LEVEL = frozenset({"Balanced", "TooLittleToGain"})
STUCK = frozenset({"NoBetterPlacement", "WouldMakeWorse", "MaxMovesTooFew"})
UNEVEN = STUCK | {"Proposed", "Confirming", "AlreadyProposed", "ReassignmentInProgress"}


def balanced_condition(
    cluster: KafkaCluster, refused: str | None, before: Condition | None, now: str
) -> Condition | None:
    """None if no job is wanted and none has run."""
    looked = cluster.status.rebalance
    if refused is not None:
        status, reason, message = UNKNOWN, "JobNotCreated", f"{refused[0].upper()}{refused[1:]}."
    elif looked is not None:
        status = TRUE if looked.reason in LEVEL else FALSE if looked.reason in UNEVEN else UNKNOWN
        reason, message = looked.reason, looked.message
    elif cluster.spec.rebalance is not None and cluster.spec.rebalance.job is not None:
        status, reason, message = UNKNOWN, "NotLookedYet", "The rebalance job has not looked yet."
    else:
        return None
    since = before.last_transition_time if before is not None and before.status == status else now
    return Condition(BALANCED, status, reason, message[:MAX_MESSAGE], since, cluster.meta.generation)


def names_trouble(condition: Condition) -> bool:
    """Whether somebody has to do something before the job can propose."""
    waits = condition.reason in ("NotLookedYet", "Confirming")
    return not waits and (condition.status == UNKNOWN or condition.reason in STUCK)
