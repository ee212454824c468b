"""Writes an image in the archive format of `docker save`, from layers that are tar files already.

Uses only the standard library. The same layers and settings always give the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

EPOCH = "1970-01-01T00:00:00Z"


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_archive(path: Path, name: str, layers: Sequence[Path], settings: Mapping[str, Any]) -> None:
    """`settings` are fields of Docker's image configuration: architecture, config, ..."""
    digests = [digest_of(layer) for layer in layers]
    config = {
        "created": EPOCH,
        "os": "linux",
        **settings,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
        "history": [{"created": EPOCH, "created_by": "ballast image"} for _ in digests],
    }
    content = json.dumps(config, sort_keys=True).encode()
    config_name = f"{hashlib.sha256(content).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": [name], "Layers": [f"{digest}.tar" for digest in digests]}]
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with tarfile.open(temporary, "w") as archive:
            _add_bytes(archive, "manifest.json", json.dumps(manifest).encode())
            _add_bytes(archive, config_name, content)
            for digest, layer in dict(zip(digests, layers, strict=True)).items():
                with layer.open("rb") as file:
                    archive.addfile(_entry(f"{digest}.tar", layer.stat().st_size), file)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_layer(path: Path, tree: Path, inside: str) -> None:
    """Write a layer that has `tree`'s files at `inside` in the image: owned by root, readable by all, without dates."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")

    def normal(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
        return entry

    try:
        with tarfile.open(temporary, "w") as archive:
            for child in sorted(tree.iterdir()):
                archive.add(child, f"{inside.strip('/')}/{child.name}".strip("/"), filter=normal)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _entry(name: str, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size = size
    entry.mode = 0o644
    return entry


def _add_bytes(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    archive.addfile(_entry(name, len(content)), io.BytesIO(content))
