"""The spec and status of each kind as frozen dataclasses that mirror `crds/`. PURE."""
