"""A delegation token as stored in the metadata: owner, renewers, expiry. It contains no secret. PURE."""

from __future__ import annotations

from typing import Any, NamedTuple

from ballast_broker.metadata.records import record


class DelegationToken(NamedTuple):
    """Principals are strings like `User:alice`."""

    id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_ms: int
    ends_ms: int
    """The maximum lifetime: cannot be renewed beyond."""
    expires_ms: int
    """Unless it is renewed before then."""

    @classmethod
    def of(cls, kept: Any) -> DelegationToken:
        return cls(
            kept.token_id,
            kept.owner,
            kept.requester,
            tuple(kept.renewers),
            kept.issue_timestamp,
            kept.max_timestamp,
            kept.expiration_timestamp,
        )

    def record(self) -> Any:
        return record(
            "DelegationTokenRecord",
            token_id=self.id,
            owner=self.owner,
            requester=self.requester,
            renewers=list(self.renewers),
            issue_timestamp=self.issued_ms,
            max_timestamp=self.ends_ms,
            expiration_timestamp=self.expires_ms,
        )

    def is_expired(self, now_ms: int) -> bool:
        return min(self.ends_ms, self.expires_ms) < now_ms

    def may_be_renewed_by(self, principal: str) -> bool:
        """Whether the principal may renew or expire it."""
        return principal == self.owner or principal in self.renewers

    def concerns(self, principal: str) -> bool:
        """Whether the principal may see it without any permission."""
        return principal == self.requester or self.may_be_renewed_by(principal)


def written(kind: str, name: str) -> str:
    return f"{kind}:{name}"


def parted(principal: str) -> tuple[str, str]:
    """Split a principal into type and name."""
    kind, _, name = principal.partition(":")
    return kind, name
