"""Delegation tokens: who may create, renew and expire one, what is stored, and that expired ones are removed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.broker import turning
from tests.broker.controller.cluster import Cluster
from tests.broker.controller.scene import Scene

from ballast_broker.controller.commands.context import MAX_RECORDS_PER_BATCH, TokenConfig
from ballast_broker.controller.commands.delegation_tokens import (
    create_delegation_token,
    expire_delegation_token,
    remove_expired_tokens,
    renew_delegation_token,
)
from ballast_broker.controller.service import ServiceTiming
from ballast_broker.metadata.delegation_tokens import DelegationToken
from ballast_broker.metadata.delta import MetadataDelta
from ballast_broker.metadata.image import EMPTY_IMAGE
from ballast_broker.metadata.loader import MetadataLoader
from ballast_broker.metadata.records import decode_record, encode_record
from ballast_broker.metadata.snapshot import image_records
from ballast_broker.security.delegation import hmac_of
from ballast_wire.envelope import Requester
from ballast_wire.errors import ApiError, ErrorCode
from ballast_wire.messages import message

pytestmark = pytest.mark.spec("CLI-13")

NOW_MS = 1_700_000_000_000
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
SECRET = b"of this cluster"
TOKENS = TokenConfig(SECRET, max_lifetime_ms=10 * HOUR_MS, expiry_time_ms=HOUR_MS)
ANN, BOB, EVE = (Requester(name, "app", "/10.0.0.1") for name in ("ann", "bob", "eve"))
Request = message("CreateDelegationTokenRequest")


class Tokens:
    """A controller whose clock the test sets."""

    def __init__(self, config: TokenConfig | None = TOKENS) -> None:
        self.scene = Scene(delegation_tokens=config)
        self.now_ms = NOW_MS

    def run(self, command: Any, request: Any, asker: Requester | None) -> Any:
        context = replace(self.scene.context, now_ms=self.now_ms, asker=asker)
        return self.scene.commit(command(context, request))

    def create(
        self,
        asker: Requester | None = ANN,
        *,
        owner: tuple[str | None, str | None] = (None, None),
        renewers: tuple[str, ...] = (),
        lifetime_ms: int = -1,
    ) -> Any:
        named = [each.partition(":") for each in renewers]
        return self.run(
            create_delegation_token,
            Request(
                owner_principal_type=owner[0],
                owner_principal_name=owner[1],
                renewers=[
                    Request.CreatableRenewers(principal_type=kind, principal_name=name) for kind, _, name in named
                ],
                max_lifetime_ms=lifetime_ms,
            ),
            asker,
        )

    def renew(self, hmac: bytes, period_ms: int = -1, asker: Requester = ANN) -> tuple[ErrorCode, int]:
        request = message("RenewDelegationTokenRequest")(hmac=hmac, renew_period_ms=period_ms)
        answer = self.run(renew_delegation_token, request, asker)
        return ErrorCode(answer.error_code), answer.expiry_timestamp_ms

    def expire(self, hmac: bytes, period_ms: int = -1, asker: Requester = ANN) -> tuple[ErrorCode, int]:
        request = message("ExpireDelegationTokenRequest")(hmac=hmac, expiry_time_period_ms=period_ms)
        answer = self.run(expire_delegation_token, request, asker)
        return ErrorCode(answer.error_code), answer.expiry_timestamp_ms

    @property
    def kept(self) -> list[DelegationToken]:
        return sorted(self.scene.image.security.delegation_tokens.values())


def test_a_token_is_made_and_its_hmac_is_kept_nowhere() -> None:
    tokens = Tokens()
    answer = tokens.create(renewers=("User:bob",))
    assert (answer.error_code, answer.principal_type, answer.principal_name) == (0, "User", "ann")
    assert (answer.token_requester_principal_type, answer.token_requester_principal_name) == ("User", "ann")
    times = NOW_MS, NOW_MS + HOUR_MS, NOW_MS + 10 * HOUR_MS
    assert (answer.issue_timestamp_ms, answer.expiry_timestamp_ms, answer.max_timestamp_ms) == times
    assert answer.hmac == hmac_of(SECRET, answer.token_id)
    assert len(answer.token_id) == 22
    assert tokens.kept == [
        DelegationToken(answer.token_id, "User:ann", "User:ann", ("User:bob",), NOW_MS, times[2], times[1])
    ]
    assert answer.hmac not in encode_record(tokens.kept[0].record())
    assert tokens.create().token_id != answer.token_id


def test_as_apache_kafka_makes_an_hmac() -> None:
    """The HMAC that Apache Kafka 4.1.1 made for this id with this secret."""
    made = hmac_of(b"a secret of this test", "Nbsv4KhdRKeF-YIlvaWZ3A")
    assert made.hex().startswith("f63e6ab402831c50c9e1cddea14e85d944284bda2f497eecd88cc6efab2fb086151eff43c2395c1ae43e")


@pytest.mark.parametrize(
    ("lifetime_ms", "expires_ms", "ends_ms"),
    [
        (-1, HOUR_MS, 10 * HOUR_MS),
        (0, HOUR_MS, 10 * HOUR_MS),
        (MINUTE_MS, MINUTE_MS, MINUTE_MS),
        (2 * HOUR_MS, HOUR_MS, 2 * HOUR_MS),
        (2**63 - 1, HOUR_MS, 10 * HOUR_MS),
    ],
)
def test_nobody_gets_more_than_there_is_to_have(lifetime_ms: int, expires_ms: int, ends_ms: int) -> None:
    answer = Tokens().create(lifetime_ms=lifetime_ms)
    assert (answer.expiry_timestamp_ms - NOW_MS, answer.max_timestamp_ms - NOW_MS) == (expires_ms, ends_ms)


def test_a_token_for_somebody_else_is_his() -> None:
    tokens = Tokens()
    answer = tokens.create(BOB, owner=("User", "ann"))
    assert (answer.principal_name, answer.token_requester_principal_name) == ("ann", "bob")
    assert tokens.kept[0][1:3] == ("User:ann", "User:bob")
    assert tokens.renew(answer.hmac, asker=BOB) == (ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, 0)
    assert tokens.renew(answer.hmac, asker=ANN)[0] is ErrorCode.NONE
    assert tokens.create(BOB, owner=("User", "")).principal_name == "bob"


def test_only_users_renew() -> None:
    tokens = Tokens()
    answer = tokens.create(renewers=("User:bob", "Group:x"))
    assert answer.error_code == ErrorCode.INVALID_PRINCIPAL_TYPE
    assert (answer.token_id, answer.hmac, tokens.kept) == ("", b"", [])


@pytest.mark.parametrize("asker", [None, ANN._replace(by_token=True)])
def test_who_is_known_by_a_token_or_not_at_all_gets_none(asker: Requester | None) -> None:
    tokens = Tokens()
    for command, request in (
        (create_delegation_token, Request(renewers=[], max_lifetime_ms=-1)),
        (renew_delegation_token, message("RenewDelegationTokenRequest")(hmac=b"x", renew_period_ms=1)),
        (expire_delegation_token, message("ExpireDelegationTokenRequest")(hmac=b"x", expiry_time_period_ms=1)),
    ):
        with pytest.raises(ApiError) as refused:
            tokens.run(command, request, asker)
        assert refused.value.code is ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


def test_without_a_secret_there_are_none() -> None:
    tokens = Tokens(None)
    assert tokens.create().error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    assert tokens.renew(b"x") == (ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, 0)
    assert tokens.expire(b"x") == (ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, 0)


def test_the_secret_is_shown_by_nothing() -> None:
    assert "of this cluster" not in repr(Tokens().scene.context)


def test_owner_and_renewers_renew_as_long_as_it_lasts() -> None:
    tokens = Tokens()
    hmac = tokens.create(renewers=("User:bob",)).hmac
    for passed_ms, period_ms, until_ms, asker in (
        (0, -1, HOUR_MS, ANN),
        (MINUTE_MS, 0, HOUR_MS, BOB),
        (0, MINUTE_MS, MINUTE_MS, BOB),
        (MINUTE_MS, 2 * HOUR_MS, HOUR_MS, ANN),
        (HOUR_MS, 2**63 - 1, HOUR_MS, ANN),
    ):
        tokens.now_ms += passed_ms
        assert tokens.renew(hmac, period_ms, asker) == (ErrorCode.NONE, tokens.now_ms + until_ms)
        assert tokens.kept[0].expires_ms == tokens.now_ms + until_ms
    assert tokens.renew(hmac, asker=EVE) == (ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, 0)
    for _ in range(8):
        tokens.now_ms += HOUR_MS
        tokens.renew(hmac)
    assert tokens.kept[0].expires_ms == tokens.kept[0].ends_ms == NOW_MS + 10 * HOUR_MS


def test_what_is_over_cannot_be_renewed_but_ended() -> None:
    tokens = Tokens()
    hmac = tokens.create().hmac
    tokens.now_ms += HOUR_MS
    assert tokens.renew(hmac, HOUR_MS)[0] is ErrorCode.NONE
    tokens.now_ms += HOUR_MS + 1
    assert tokens.renew(hmac) == (ErrorCode.DELEGATION_TOKEN_EXPIRED, 0)
    assert tokens.renew(hmac, asker=EVE) == (ErrorCode.DELEGATION_TOKEN_EXPIRED, 0)
    assert tokens.expire(hmac, 5) == (ErrorCode.DELEGATION_TOKEN_EXPIRED, 0)
    assert tokens.expire(hmac, 5, EVE) == (ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, 0)
    assert tokens.expire(hmac) == (ErrorCode.NONE, tokens.now_ms)
    assert tokens.kept == []


def test_a_token_is_ended_at_once_or_soon() -> None:
    tokens = Tokens()
    hmac, other = tokens.create(renewers=("User:bob",)).hmac, tokens.create().hmac
    assert tokens.expire(hmac, asker=EVE) == (ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, 0)
    assert tokens.expire(hmac, MINUTE_MS, BOB) == (ErrorCode.NONE, NOW_MS + MINUTE_MS)
    assert tokens.expire(hmac, 100 * HOUR_MS) == (ErrorCode.NONE, NOW_MS + 10 * HOUR_MS)
    assert tokens.expire(hmac, 0) == (ErrorCode.NONE, NOW_MS)
    assert tokens.expire(hmac) == (ErrorCode.NONE, NOW_MS)
    assert tokens.expire(hmac) == (ErrorCode.DELEGATION_TOKEN_NOT_FOUND, 0)
    assert tokens.renew(hmac) == (ErrorCode.DELEGATION_TOKEN_NOT_FOUND, 0)
    assert tokens.renew(other[:-1]) == (ErrorCode.DELEGATION_TOKEN_NOT_FOUND, 0)
    assert tokens.renew(b"") == (ErrorCode.DELEGATION_TOKEN_NOT_FOUND, 0)
    assert len(tokens.kept) == 1


def test_what_is_over_is_removed() -> None:
    tokens = Tokens()
    short, long = tokens.create(lifetime_ms=MINUTE_MS), tokens.create()
    context = replace(tokens.scene.context, now_ms=NOW_MS + MINUTE_MS)
    assert remove_expired_tokens(context).records == []
    outcome = remove_expired_tokens(replace(context, now_ms=NOW_MS + MINUTE_MS + 1))
    assert [each.token_id for each in outcome.records] == [short.token_id]
    tokens.scene.commit(outcome)
    assert [each.id for each in tokens.kept] == [long.token_id]


def test_no_more_go_at_once_than_a_batch_may_have() -> None:
    tokens = Tokens()
    old = DelegationToken("", "User:a", "User:a", (), NOW_MS, NOW_MS, NOW_MS)
    tokens.scene.apply([old._replace(id=str(each)).record() for each in range(MAX_RECORDS_PER_BATCH + 5)])
    outcome = remove_expired_tokens(replace(tokens.scene.context, now_ms=NOW_MS + 1))
    assert len(outcome.records) == MAX_RECORDS_PER_BATCH
    tokens.scene.commit(outcome)
    assert len(tokens.kept) == 5


def test_a_snapshot_has_them_and_takes_the_place_of_others() -> None:
    tokens = Tokens()
    tokens.create(renewers=("User:bob", "User:carol"))
    records = [decode_record(encode_record(each)) for each in image_records(tokens.scene.image)]
    delta = MetadataDelta(EMPTY_IMAGE)
    for each in records:
        delta.replay(each)
    assert dict(delta.apply().security.delegation_tokens) == {each.id: each for each in tokens.kept}
    loader = MetadataLoader()
    old = DelegationToken("gone", "User:a", "User:a", (), NOW_MS, NOW_MS, NOW_MS)
    turning.at_one_go(loader.apply([old.record()], 0, 1))
    seen: list[Any] = []
    loader.publishers.append(lambda delta, image: seen.append(delta.tokens_changed))
    turning.at_one_go(loader.load_snapshot(records, 10, 1))
    assert seen == [{tokens.kept[0].id: tokens.kept[0], "gone": None}]
    assert list(loader.image.security.delegation_tokens) == [tokens.kept[0].id]


async def test_the_active_controller_removes_them_as_time_goes() -> None:
    """Also tokens that another controller has created; tokens survive a restart."""
    timing = ServiceTiming(token_expiry_interval_s=0.05)
    async with Cluster(voters=3, timing=timing, tokens=TOKENS) as cluster:
        made = [await _create(cluster, lifetime_ms) for lifetime_ms in (400, HOUR_MS)]
        first = cluster.active
        await first.kill()
        assert first.service is not None
        await cluster.until(lambda: any(each.service.is_active for each in cluster.live if each.service is not None))
        ids = [each.token_id for each in made]
        await cluster.until(lambda: list(cluster.active.image.security.delegation_tokens) == ids[1:])
        await first.start()
        await cluster.until(lambda: list(first.image.security.delegation_tokens) == ids[1:])


async def _create(cluster: Cluster, lifetime_ms: int) -> Any:
    request = Request(renewers=[], max_lifetime_ms=lifetime_ms)
    answer = await asyncio.wait_for(cluster.active.client.call(request, 3, asker=ANN), 10)
    assert answer.error_code == 0
    return answer
