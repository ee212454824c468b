"""AlterUserScramCredentials: stores users' SCRAM credentials. PURE.

The client sends the salted password; the controller derives and stores only StoredKey and ServerKey, which do not
suffice to authenticate.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from ballast_broker.controller.commands.context import CommandContext, Outcome
from ballast_broker.controller.commands.pieces import one_by_one
from ballast_broker.metadata.records import record
from ballast_broker.security.scram import LEAST_ITERATIONS, MECHANISM_CODES, MOST_ITERATIONS, credential_of
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message

MECHANISMS = {code: name for name, code in MECHANISM_CODES.items()}


def alter_user_scram_credentials(context: CommandContext, request: Any) -> Outcome:
    response = message("AlterUserScramCredentialsResponse")(throttle_time_ms=0, results=[])
    kind = type(response).AlterUserScramCredentialsResult
    changes = [(each, _deletion) for each in request.deletions] + [(each, _upsertion) for each in request.upsertions]
    counts = Counter((each.name, each.mechanism) for each, _ in changes)
    by_user: dict[str, list[Any]] = {}
    for change in changes:
        by_user.setdefault(change[0].name, []).append(change)

    def answer(user: str) -> Any:
        result = kind(user=user, error_code=0, error_message=None)
        response.results.append(result)
        return result

    def alter(now: CommandContext, user: str) -> list[Any]:
        return [_changed(now, each, record_of, counts) for each, record_of in by_user[user]]

    return one_by_one(context, [*by_user], answer, alter, response)


def _changed(context: CommandContext, wanted: Any, record_of: Any, counts: Counter[tuple[str, int]]) -> Any:
    if counts[wanted.name, wanted.mechanism] > 1:
        raise ApiError(ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request")
    _check(wanted)
    return record_of(context, wanted)


def _check(wanted: Any) -> None:
    if not wanted.name:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if wanted.mechanism not in MECHANISMS:
        raise ApiError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")


def _deletion(context: CommandContext, wanted: Any) -> Any:
    if (wanted.name, wanted.mechanism) not in context.image.security.scram_credentials:
        text = "Attempt to delete a user credential that does not exist"
        raise ApiError(ErrorCode.RESOURCE_NOT_FOUND, text)
    return record("RemoveUserScramCredentialRecord", name=wanted.name, mechanism=wanted.mechanism)


def _upsertion(_context: CommandContext, wanted: Any) -> Any:
    if wanted.iterations < LEAST_ITERATIONS:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if wanted.iterations > MOST_ITERATIONS:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    if not wanted.salt or not wanted.salted_password:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Salt and salted password must not be empty")
    kept = credential_of(MECHANISMS[wanted.mechanism], wanted.salted_password, wanted.salt, wanted.iterations)
    return record(
        "UserScramCredentialRecord",
        name=wanted.name,
        mechanism=wanted.mechanism,
        salt=kept.salt,
        stored_key=kept.stored_key,
        server_key=kept.server_key,
        iterations=kept.iterations,
    )
