"""DescribeUserScramCredentials: the SCRAM mechanisms and iteration counts of users."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from ballast_broker.api.authorizer import Operation
from ballast_broker.api.context import RequestContext
from ballast_broker.api.permissions import check_cluster
from ballast_broker.turns import InTurns
from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message


async def handle(request: Any, context: RequestContext) -> Any:
    check_cluster(Operation.DESCRIBE, context)
    kind = message("DescribeUserScramCredentialsResponse")
    result_kind = kind.DescribeUserScramCredentialsResult
    known: dict[str, list[Any]] = defaultdict(list)
    credentials = sorted(context.broker.image().security.scram_credentials.items())
    async for (user, mechanism), kept in InTurns(credentials):
        known[user].append(result_kind.CredentialInfo(mechanism=mechanism, iterations=kept.iterations))
    asked = [each.name for each in request.users or ()] or list(known)
    times = Counter(asked)
    results = []
    async for user in InTurns(times):
        result = result_kind(user=user, error_code=ErrorCode.NONE, credential_infos=[])
        if times[user] > 1:
            result.error_code = ErrorCode.DUPLICATE_RESOURCE
            result.error_message = (
                f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
            )
        elif user not in known:
            result.error_code = ErrorCode.RESOURCE_NOT_FOUND
            result.error_message = f"Attempt to describe a user credential that does not exist: {user}"
        else:
            result.credential_infos = known[user]
        results.append(result)
    return kind(error_code=ErrorCode.NONE, error_message="", results=results)
