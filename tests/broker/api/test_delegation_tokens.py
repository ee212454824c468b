"""Who may request delegation tokens from a broker, and who sees which of them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.broker.api.asking import Asker
from tests.broker.api.test_permissions import knowing
from tests.broker.controller.scene import Scene

from ballast_broker.api.authorizer import Operation, ResourceKind
from ballast_broker.controller.commands.context import TokenConfig
from ballast_broker.metadata.acls import Acl, PatternType, Permission
from ballast_broker.net_reply import ANONYMOUS, Principal
from ballast_broker.security.delegation import hmac_of
from ballast_wire.errors import ErrorCode

pytestmark = pytest.mark.spec("CLI-13")

SECRET = "of this cluster"
ANN, BOB, EVE = (Principal(name=each) for each in ("ann", "bob", "eve"))
BY_TOKEN = Principal(name="ann", by_token=True)
NOBODYS: dict[str, Any] = {"owner_principal_type": None, "owner_principal_name": None}
OF_BOB: dict[str, Any] = {"owner_principal_type": "User", "owner_principal_name": "bob"}
NOT_ALLOWED = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


def right(operation: Operation, kind: ResourceKind, name: str, who: str) -> Acl:
    return Acl(kind, name, PatternType.LITERAL, f"User:{who}", "*", operation, Permission.ALLOW)


def asking(*acls: Acl, secret: str = SECRET) -> Asker:
    config = TokenConfig(secret.encode()) if secret else None
    scene = Scene(delegation_tokens=config)
    return Asker(scene, authorizer=knowing(*acls), **{"delegation.token.secret.key": secret})


async def create(asker: Asker, who: Principal, version: int = 3, **fields: Any) -> Any:
    asker.principal = who
    wanted = {**NOBODYS, "renewers": [], "max_lifetime_ms": -1} | fields
    return await asker.ask("CreateDelegationToken", version, **wanted)


async def seen(asker: Asker, who: Principal, owners: list[str] | None = None, version: int = 3) -> list[str]:
    """The owners of the tokens that `who` sees."""
    asker.principal = who
    named = None if owners is None else [{"principal_type": "User", "principal_name": each} for each in owners]
    answer = await asker.ask("DescribeDelegationToken", version, owners=named)
    assert answer["error_code"] == ErrorCode.NONE
    for each in answer["tokens"]:
        assert each["hmac"] == hmac_of(SECRET.encode(), each["token_id"]).hex()
        assert ("token_requester_principal_name" in each) == (version >= 3)
    return sorted(each["principal_name"] for each in answer["tokens"])


@pytest.mark.parametrize("who", [ANONYMOUS, BY_TOKEN])
@pytest.mark.parametrize("secret", [SECRET, ""])
async def test_who_is_not_known_or_by_a_token_is_refused_before_all_else(who: Principal, secret: str) -> None:
    asker = asking(secret=secret)
    asker.away = True  # no controller is asked
    other = [{"principal_type": "Group", "principal_name": "x"}]
    answer = await create(asker, who, renewers=other, **OF_BOB)
    assert (answer["error_code"], answer["principal_name"]) == (NOT_ALLOWED, "bob")
    assert answer["token_requester_principal_name"] == who.name
    assert (answer["issue_timestamp_ms"], answer["expiry_timestamp_ms"], answer["max_timestamp_ms"]) == (-1, -1, -1)
    for name, period in (
        ("RenewDelegationToken", "renew_period_ms"),
        ("ExpireDelegationToken", "expiry_time_period_ms"),
    ):
        for version in (1, 2):
            changed = await asker.ask(name, version, hmac=b"x", **{period: 1})
            assert (changed["error_code"], changed["expiry_timestamp_ms"]) == (NOT_ALLOWED, -1)
    for version in (1, 2, 3):
        described = await asker.ask("DescribeDelegationToken", version, owners=None)
        assert (described["error_code"], described["tokens"]) == (NOT_ALLOWED, [])


async def test_tokens_for_others_take_a_right() -> None:
    asker = asking(right(Operation.CREATE_TOKENS, ResourceKind.USER, "User:bob", "ann"))
    assert (await create(asker, EVE, **OF_BOB))["error_code"] == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    assert (await create(asker, ANN, **OF_BOB))["error_code"] == ErrorCode.NONE
    assert (await create(asker, BOB, **OF_BOB))["error_code"] == ErrorCode.NONE
    for version in (1, 2, 3):
        answer = await create(asker, EVE, version)
        assert (answer["error_code"], answer["principal_name"]) == (ErrorCode.NONE, "eve")


async def test_who_renews_is_looked_at_after_who_asks_and_before_a_controller_is_asked() -> None:
    asker = asking()
    asker.away = True
    other = [{"principal_type": "Group", "principal_name": "x"}]
    answer = await create(asker, EVE, renewers=other, **OF_BOB)
    assert answer["error_code"] == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    assert (await create(asker, EVE, renewers=other))["error_code"] == ErrorCode.INVALID_PRINCIPAL_TYPE


async def test_without_a_secret_all_are_told_so() -> None:
    asker = asking(secret="")
    assert (await create(asker, ANN))["error_code"] == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    described = await asker.ask("DescribeDelegationToken", 3, owners=[])
    assert described["error_code"] == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    renewed = await asker.ask("RenewDelegationToken", 2, hmac=b"x", renew_period_ms=1)
    assert (renewed["error_code"], renewed["expiry_timestamp_ms"]) == (ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, 0)


async def test_who_sees_whose_tokens() -> None:
    asker = asking(
        right(Operation.CREATE_TOKENS, ResourceKind.USER, "User:bob", "ann"),
        right(Operation.DESCRIBE_TOKENS, ResourceKind.USER, "User:bob", "eve"),
    )
    await create(asker, ANN, renewers=[{"principal_type": "User", "principal_name": "carol"}])
    await create(asker, ANN, **OF_BOB)
    for version in (1, 2, 3):
        assert await seen(asker, ANN, version=version) == ["ann", "bob"]
    assert await seen(asker, BOB) == ["bob"]
    assert await seen(asker, EVE) == ["bob"]
    assert await seen(asker, Principal(name="carol")) == ["ann"]
    assert await seen(asker, Principal(name="dave")) == []
    assert await seen(asker, ANN, []) == []
    assert await seen(asker, ANN, ["carol"]) == ["ann"]
    assert await seen(asker, ANN, ["bob", "dave"]) == ["bob"]
    assert await seen(asker, EVE, ["ann"]) == ["bob"], "ann has asked for that one"


async def test_a_token_may_be_shown_by_its_id() -> None:
    first = asking()
    token_id = (await create(first, ANN))["token_id"]
    asker = Asker(
        first.scene,
        authorizer=knowing(right(Operation.DESCRIBE, ResourceKind.DELEGATION_TOKEN, token_id, "eve")),
        **{"delegation.token.secret.key": SECRET},
    )
    assert await seen(asker, EVE) == ["ann"]
    assert await seen(asker, BOB) == []
