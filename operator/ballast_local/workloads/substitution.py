"""Substitutes mount paths and in-cluster names for processes without a mount namespace and DNS. PURE.

Mount paths become the real directories, and in-cluster names (`POD.SERVICE.NAMESPACE.svc`, `SERVICE.NAMESPACE.svc`)
become addresses, wherever they occur in the command, the arguments, the environment and mounted texts.
"""

import re
from collections.abc import Callable, Mapping

# (namespace, service, pod or "") → address, or None if the name is unknown
Resolve = Callable[[str, str, str], str | None]

_NAME = re.compile(
    r"(?<![\w.-])(?:(?P<pod>[a-z0-9][a-z0-9-]*)\.)?(?P<service>[a-z0-9][a-z0-9-]*)\.(?P<namespace>[a-z0-9][a-z0-9-]*)"
    r"\.svc(?:\.cluster\.local\.?)?(?![\w-])"
)
_VARIABLE = re.compile(r"\$\$|\$\(([A-Za-z_][\w.-]*)\)")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Expand $(NAME) to the variable's value and $$ to a dollar; unknown variables are left as they are."""

    def one(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else variables.get(match[1], match[0])

    return _VARIABLE.sub(one, text)


class Substitution:
    def __init__(self, mounts: Mapping[str, str], resolve: Resolve) -> None:
        self._mounts = {path.rstrip("/"): target for path, target in mounts.items()}
        paths = sorted(map(re.escape, self._mounts), key=len, reverse=True)
        self._paths = re.compile(rf"(?<![\w./-])({'|'.join(paths)})(?![\w.-])") if paths else None
        self._resolve = resolve

    def __call__(self, text: str) -> str:
        if self._paths is not None:
            text = self._paths.sub(lambda match: self._mounts[match[1]], text)
        return _NAME.sub(self._name, text) if ".svc" in text else text

    def _name(self, match: re.Match[str]) -> str:
        return self._resolve(match["namespace"], match["service"], match["pod"] or "") or match[0]
