"""Resolves references to values outside the properties file, `${NAME:PATH:KEY}` (KIP-297).

`config.providers` names the providers: a directory with a file per key, as Kubernetes mounts a Secret, or another
properties file. Unlike in Apache Kafka, a missing value is an error: otherwise the reference itself would become the
value, known to everybody who can read the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from ballast_broker.config.properties_file import parse_properties, text_of
from ballast_broker.config_types import ConfigError

PROVIDERS = "config.providers"
_PACKAGE = "org.apache.kafka.common.config.provider"
_REFERENCE = re.compile(r"\$\{([^}]*?):(?:([^}]*?):)?([^}]*?)\}")

Provider = Callable[[str, str], str]
"""(path, key) → value."""


def resolved(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties with references resolved and without those of the providers."""
    about = {name: text for name, text in properties.items() if name == PROVIDERS or name.startswith(f"{PROVIDERS}.")}
    named = [name.strip() for name in about.pop(PROVIDERS, "").split(",") if name.strip()]
    providers = {name: _provider(name, about) for name in named}
    if about:
        raise ConfigError(f"{min(about)}: there is no such setting of a provider that {PROVIDERS} names")
    rest = {name: text for name, text in properties.items() if not name.startswith(PROVIDERS)}
    return {name: _in_place(name, text, providers) for name, text in rest.items()} if providers else rest


def _provider(name: str, about: dict[str, str]) -> Provider:
    """Create one provider; removes its settings from `about`."""
    setting = f"{PROVIDERS}.{name}.class"
    wanted = about.pop(setting, "").strip()
    read = _CLASSES.get(wanted)
    if read is None:
        raise ConfigError(f"Invalid value {wanted} for configuration {setting}: there are {', '.join(_CLASSES)}")
    paths = about.pop(f"{PROVIDERS}.{name}.param.allowed.paths", None)
    allowed = None if paths is None else [Path(path.strip()).resolve() for path in paths.split(",") if path.strip()]

    def provide(path: str, key: str) -> str:
        if allowed is not None and not any(Path(path).resolve().is_relative_to(one) for one in allowed):
            raise ConfigError(f"{path} is not among the allowed paths of provider {name}")
        try:
            return read(path, key)
        except OSError as error:
            raise ConfigError(f"cannot read {error.filename}: {error.strerror}") from None

    return provide


def _in_place(name: str, text: str, providers: Mapping[str, Provider]) -> str:
    def one(match: re.Match[str]) -> str:
        provider = providers.get(match[1])
        if provider is None:
            return match[0]  # as in Apache Kafka: some values happen to look like this
        try:
            return provider(match[2] or "", match[3])
        except ConfigError as error:
            raise ConfigError(f"Invalid value {match[0]} for configuration {name}: {error}") from None

    return _REFERENCE.sub(one, text)


def _of_directory(path: str, key: str) -> str:
    if "/" in key or key in ("", ".", ".."):
        raise ConfigError(f"the key has to be the name of a file in {path}")
    return text_of((Path(path) / key).read_bytes())


def _of_file(path: str, key: str) -> str:
    found = parse_properties(text_of(Path(path).read_bytes())).get(key)
    if found is None:
        raise ConfigError(f"{path} has no property {key}")
    return found


_CLASSES = {f"{_PACKAGE}.DirectoryConfigProvider": _of_directory, f"{_PACKAGE}.FileConfigProvider": _of_file}
