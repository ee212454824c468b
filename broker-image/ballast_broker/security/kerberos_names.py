"""Maps Kerberos principals to local names by the rules in `sasl.kerberos.principal.to.local.rules`. PURE.

A rule, such as `RULE:[2:$1@$0](.*@EXAMPLE.COM)s/@.*//L`, has: the number of components it applies to, the string built
from them, a pattern that must match, a substitution, and the case of the result. The first applicable rule wins.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

DEFAULT = "DEFAULT"
_RULE = re.compile(
    r"(DEFAULT)|RULE:\[(\d*):([^\]]*)\](?:\(([^)]*)\))?(?:s/([^/]*)/([^/]*)/(g)?)?/?(L|U)?", re.ASCII | re.DOTALL
)
_PRINCIPAL = re.compile(r"([^/@]*)(?:/([^/@]*))?@([^/@]*)")
_PART = re.compile(r"\$(\d*)|([^$]+)", re.ASCII)
_REPLACED = re.compile(r"\\(.)|\$(\d+)|([^\\$])", re.ASCII | re.DOTALL)
_MOST_COMPONENTS = 2**31 - 1
NameOf = Callable[[str], str]


class NoLocalName(ValueError):
    """No rule maps the principal."""


class KerberosRuleError(ValueError):
    """A rule is malformed."""


class _Rule(NamedTuple):
    text: str
    components: int
    parts: tuple[int | str, ...]  # component numbers, 0 being the realm, or literal text
    matched: re.Pattern[str] | None
    replaced: re.Pattern[str] | None
    replacement: Callable[[re.Match[str]], str]
    everywhere: bool
    case: str

    def name_of(self, components: Sequence[str]) -> str | None:
        if len(components) - 1 != self.components:
            return None
        name = "".join(self._part(each, components) for each in self.parts)
        if self.matched is not None and self.matched.fullmatch(name) is None:
            return None
        if self.replaced is not None:
            name = self.replaced.sub(self.replacement, name, 0 if self.everywhere else 1)
        return name

    def _part(self, part: int | str, components: Sequence[str]) -> str:
        if isinstance(part, str):
            return part
        if part >= len(components):
            raise NoLocalName(f"${part} of {self.text} is outside of the valid range 0 to {len(components) - 1}")
        return components[part]


def local_names(rules: Sequence[str], default_realm: str) -> NameOf:
    """Return the mapping, which raises NoLocalName; raise KerberosRuleError for a malformed rule."""
    read = [_read(each) for each in rules]

    def name_of(principal: str) -> str:
        components = _components(principal)
        if len(components) == 1:
            return components[0]
        for rule in read:
            name = rule.name_of(components) if rule is not None else _of_realm(components, default_realm)
            if name is not None:
                return _checked(name, principal, rule)
        raise NoLocalName(f"No rules apply to {principal}, rules [{', '.join(rules)}]")

    return name_of


def _components(principal: str) -> list[str]:
    """The realm and one or two components; just the name if there is no realm."""
    found = _PRINCIPAL.fullmatch(principal)
    if found is None:
        if "@" in principal:
            raise NoLocalName(f"Malformed Kerberos name: {principal}")
        return [principal]
    return [found[3], found[1], *([] if found[2] is None else [found[2]])]


def _of_realm(components: Sequence[str], default_realm: str) -> str | None:
    return components[1] if components[0] == default_realm else None


def _checked(name: str, principal: str, rule: _Rule | None) -> str:
    if "/" in name or "@" in name:
        raise NoLocalName(f"Non-simple name {name} of {principal} after rule {DEFAULT if rule is None else rule.text}")
    case = "" if rule is None else rule.case
    return name.lower() if case == "L" else name.upper() if case == "U" else name


# -- reading ----------------------------------------------------------------------------------------------------------
def _read(text: str) -> _Rule | None:
    """Parse one rule; None is the default rule."""
    found = _RULE.match(text)
    if found is None:
        raise KerberosRuleError(f"Invalid rule: {text}")
    if found.end() < len(text):
        raise KerberosRuleError(f"Invalid rule: `{text}`, unmatched substring: `{text[found.end() :]}`")
    if found[1]:
        return None
    if not found[2] or int(found[2]) > _MOST_COMPONENTS:
        raise KerberosRuleError(f"Invalid rule: `{text}`: it does not say of how many components")
    replaced = None if found[5] is None else _pattern(found[5], text)
    return _Rule(
        text,
        int(found[2]),
        _parts(found[3], text),
        None if found[4] is None else _pattern(found[4], text),
        replaced,
        _replacement(found[6] or "", 0 if replaced is None else replaced.groups, text),
        found[7] is not None,
        found[8] or "",
    )


def _parts(text: str, rule: str) -> tuple[int | str, ...]:
    found: list[int | str] = []
    for part in _PART.finditer(text):
        if part[2] is not None:
            found.append(part[2])
        elif part[1]:
            found.append(int(part[1]))
        else:
            raise KerberosRuleError(f"Invalid rule: `{rule}`: $ without the number of a component")
    return tuple(found)


def _pattern(text: str, rule: str) -> re.Pattern[str]:
    try:
        return re.compile(text, re.ASCII)
    except re.error as error:
        raise KerberosRuleError(f"Invalid rule: `{rule}`: {error}") from None


def _replacement(text: str, groups: int, rule: str) -> Callable[[re.Match[str]], str]:
    r"""Java's syntax: `$1` is a group, with as many digits as name an existing one; `\` quotes the next character."""
    parts: list[int | str] = []
    position = 0
    while position < len(text):
        found = _REPLACED.match(text, position)
        if found is None:
            raise KerberosRuleError(f"Invalid rule: `{rule}`: it ends with \\, or has $ without the number of a group")
        position = found.end()
        if found[2] is None:
            parts.append(found[1] or found[3])
            continue
        digits = found[2]
        while len(digits) > 1 and int(digits) > groups:
            digits = digits[:-1]
        if int(digits) > groups:
            raise KerberosRuleError(f"Invalid rule: `{rule}`: there is no group {digits}")
        parts.append(int(digits))
        position = found.start() + 1 + len(digits)

    def replacement(match: re.Match[str]) -> str:
        return "".join((match[each] or "") if isinstance(each, int) else each for each in parts)

    return replacement
