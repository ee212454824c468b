"""Frozen spec and status of each kind: what `crds/` says, as Python types. PURE."""
