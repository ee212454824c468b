"""A delegation token as the metadata has it: whose it is, who may renew it, until when. None of it is secret. PURE."""

from __future__ import annotations

from typing import Any, NamedTuple

from ballast_broker.metadata.records import record


class DelegationToken(NamedTuple):
    """Principals as they are written: `User:alice`."""

    id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_ms: int
    ends_ms: int
    """Never renewed beyond."""
    expires_ms: int
    """Unless it is renewed before."""

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
        """Renewed or ended."""
        return principal == self.owner or principal in self.renewers

    def concerns(self, principal: str) -> bool:
        """Who may see it without being given a right to."""
        return principal == self.requester or self.may_be_renewed_by(principal)


def written(kind: str, name: str) -> str:
    return f"{kind}:{name}"


def parted(principal: str) -> tuple[str, str]:
    """Kind and name."""
    kind, _, name = principal.partition(":")
    return kind, name
