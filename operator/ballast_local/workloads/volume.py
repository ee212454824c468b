"""The directories behind volumes: data of claims, and files of config maps, secrets and the downward API.

Blocking file operations; callers run them in a thread. `builtin_checks` decides which volumes are allowed.
"""

import base64
import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

from ballast_local.errors import Obj

Texts = dict[str, bytes]


class NotYet(Exception):
    """Something that the pod needs does not exist yet; the pod waits for it."""


def claim_directory(volumes: Path, claim: Obj) -> Path:
    """A claim's directory. It depends only on the name, so that paths stay the same across pods and restarts."""
    metadata = claim["metadata"]
    return volumes / str(metadata["namespace"]) / str(metadata["name"])


def _aside(volumes: Path) -> Path:
    return volumes / ".deleted"


def retire(directory: Path, uid: str) -> Path | None:
    """Move a deleted claim's directory aside, so that the name is free at once; the caller removes it."""
    aside = _aside(directory.parent.parent) / uid
    if not directory.is_dir():
        return None
    aside.parent.mkdir(parents=True, exist_ok=True)
    return directory.rename(aside)


def retired(volumes: Path) -> list[Path]:
    """The directories that were moved aside but not removed, named by the uids of their claims."""
    aside = _aside(volumes)
    return list(aside.iterdir()) if aside.is_dir() else []


def restore(aside: Path, directory: Path) -> bool:
    """Move a directory back if its claim's deletion was lost; returns False if there is other data in its place."""
    with contextlib.suppress(OSError):
        directory.rmdir()
    if directory.exists():
        return False
    directory.parent.mkdir(parents=True, exist_ok=True)
    aside.rename(directory)
    return True


def config_texts(source: Obj, items: list[Obj] | None, what: str, secret: bool) -> Texts:
    """File name → content."""
    held: Texts = {}
    for key, value in (source.get("data") or {}).items():
        held[key] = base64.b64decode(value) if secret else value.encode()
    for key, value in (source.get("binaryData") or {}).items():
        held[key] = base64.b64decode(value)
    if items is None:
        return held
    missing = [item["key"] for item in items if item["key"] not in held and not item.get("optional")]
    if missing:
        raise NotYet(f"references non-existent {what} key: {missing[0]}")
    return {item["path"]: held[item["key"]] for item in items if item["key"] in held}


def write_texts(directory: Path, texts: Texts, substitute: Callable[[str], str], mode: int) -> None:
    """Make the directory contain exactly these files; each is replaced atomically."""
    directory.mkdir(parents=True, exist_ok=True)
    wanted = {Path(name) for name in texts}
    for name, content in texts.items():
        path = directory / name
        if not path.resolve().is_relative_to(directory.resolve()):
            raise NotYet(f"the path {name!r} leaves its volume")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            rendered = substitute(content.decode()).encode()
        except UnicodeDecodeError:
            rendered = content
        if path.is_file() and path.read_bytes() == rendered:
            continue
        temporary = path.with_name(f".{path.name}.new")
        temporary.write_bytes(rendered)
        temporary.chmod(mode & 0o777 | 0o600)
        temporary.replace(path)
    for held in directory.rglob("*"):
        if held.is_file() and held.relative_to(directory) not in wanted:
            held.unlink()


def remove_tree(directory: Path) -> None:
    """Remove a directory with its content; symbolic links are not followed."""
    shutil.rmtree(directory, ignore_errors=True)
