"""What custom resources and their definitions are held to."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.local.conftest import DEFINITIONS, Api, Refused, definition

from ballast_local.cel import CelError, CelSyntaxError, compile_expression
from ballast_local.rules import rule_faults
from ballast_local.schema import apply_defaults, prune, validate


def widget(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "w"}, "spec": spec}


@pytest.mark.spec("OPR-01")
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({}, "spec.size: Required value"),
        ({"size": 0}, "spec.size in body should be greater than or equal to 1"),
        ({"size": "x"}, 'spec.size in body must be of type integer: "string"'),
        ({"size": 1, "mode": "Slow"}, 'Unsupported value: "Slow": supported values: "Fast", "Safe"'),
        ({"size": 1, "parts": [{"name": "a"}, {"name": "a"}]}, "spec.parts\\[1\\]: Duplicate value"),
        ({"size": 1, "replicas": 9}, "9 replicas are too many"),
        ({"size": 1, "config": {"a": 1}}, "spec.config.a in body must be of type string"),
    ],
)
def test_refused_specs(api: Api, widgets: str, spec: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused, match=message) as refused:
        api.post(widgets, widget(**spec))
    assert (refused.value.code, refused.value.reason) == (422, "Invalid")
    assert refused.value.status["details"]["causes"]


@pytest.mark.spec("OPR-01")
def test_transition_rules_compare_with_the_old_object(api: Api, widgets: str) -> None:
    api.post(widgets, widget(size=3))
    with pytest.raises(Refused, match="size cannot shrink"):
        api.patch(f"{widgets}/w", {"spec": {"size": 2}})
    api.patch(f"{widgets}/w", {"spec": {"size": 4}})


def test_unknown_fields_are_pruned_warned_of_or_refused(api: Api, widgets: str) -> None:
    made = api.post(widgets, widget(size=1, colour="red"))
    assert "colour" not in made["spec"]
    assert api.warnings == ['299 - "unknown field \\"spec.colour\\""']
    with pytest.raises(Refused, match=r'strict decoding error: unknown field "spec\.colour"') as refused:
        api.patch(f"{widgets}/w?fieldValidation=Strict", {"spec": {"colour": "red"}})
    assert refused.value.code == 400
    with pytest.raises(Refused, match=r'unknown field "spec\.replikas"'):
        api.post(
            "/apis/apps/v1/namespaces/default/deployments?fieldValidation=Strict",
            {"metadata": {"name": "d"}, "spec": {"replikas": 1}},
        )


def version(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    body = definition("broken")
    change(body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"])
    return body


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda spec: spec["properties"]["size"].pop("type"), "type: Required value"),
        (lambda spec: spec["x-kubernetes-validations"].append({"rule": "self.size >"}), "compilation failed"),
        (lambda spec: spec["x-kubernetes-validations"].append({"rule": "self.nope == 1"}), "undefined field 'nope'"),
        (
            lambda spec: spec["x-kubernetes-validations"].append({"rule": "frob(self)"}),
            "undeclared reference to 'frob'",
        ),
        (
            lambda spec: spec["x-kubernetes-validations"].append({"rule": "self.size > 1" + "0" * 5000}),
            "compilation failed: .*invalid int literal",
        ),
        (lambda spec: spec["properties"]["parts"].pop("x-kubernetes-list-map-keys"), "must not be empty"),
        (
            lambda spec: spec["properties"]["config"]["additionalProperties"].update(
                {"x-kubernetes-validations": [{"rule": 5}]}
            ),
            "cannot unmarshal number into Go struct field ValidationRule.* of type string",
        ),
        (lambda spec: spec["properties"]["config"].update(additionalProperties="yes"), "cannot unmarshal string"),
        (lambda spec: spec["properties"]["mode"].update(pattern="(?u)a"), "must be a valid regular expression"),
        (lambda spec: spec["properties"]["mode"].update(pattern="("), "must be a valid regular expression"),
        (lambda spec: spec["properties"]["mode"].update(pattern="a{9999999999}"), "must be a valid regular expression"),
    ],
)
def test_refused_definitions(api: Api, change: Callable[[dict[str, Any]], object], message: str) -> None:
    with pytest.raises(Refused, match=message):
        api.post(DEFINITIONS, version(change))


@pytest.mark.timeout(5)
def test_a_rule_of_many_calls_is_checked_at_once() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"s": {"type": "string"}}}
    for field, causes in (("s", 0), ("t", 1)):
        schema["x-kubernetes-validations"] = [{"rule": f"self.{field}{'.trim()' * 50} == ''"}]
        assert len(rule_faults(schema, "")) == causes


def test_a_definition_says_nothing_of_metadata_but_its_names(api: Api) -> None:
    body = definition("worded")
    properties = body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    properties["metadata"] = {"type": "object", "description": "Name and labels."}
    with pytest.raises(Refused, match="metadata is implicitly specified"):
        api.post(DEFINITIONS, body)


def test_defaults_pruning_and_nulls() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "default": 1},
            "b": {"type": "object", "default": {}, "properties": {"c": {"type": "string", "default": "x"}}},
            "n": {"type": "string", "nullable": True},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        },
    }
    value = {"a": None, "n": None, "free": {"any": 1}, "gone": {"x": 1}}
    assert prune(schema, value) == ["gone"]
    apply_defaults(schema, value)
    assert value == {"a": 1, "b": {"c": "x"}, "n": None, "free": {"any": 1}}
    assert validate(schema, value) == []


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string", "pattern": "^a+$"}, "aaa", "aaa\n"),
        ({"type": "string", "pattern": "^a$|^b$"}, "a", "a\n"),
        ({"type": "string", "pattern": r"^\\$"}, "\\", "\\\n"),
        ({"type": "string", "pattern": "^[a|$)]+$"}, "a|$", "b"),
        ({"type": "string", "pattern": "(?m)^a$"}, "a\nb", "ab"),
        ({"type": "string", "pattern": r"^\d\w$"}, "1a", "\u0661a"),
        ({"type": "string", "pattern": r"^(?i:ä)$"}, "Ä", "a"),
        ({"type": "string", "format": "date-time"}, "2025-01-01T00:00:00Z", "2025-01-01"),
        ({"type": "integer", "format": "int32"}, 2**31 - 1, 2**31),
        ({"type": "number", "exclusiveMinimum": True, "minimum": 0}, 0.1, 0),
        ({"x-kubernetes-int-or-string": True}, "10%", True),
        ({"type": "array", "items": {"type": "integer"}, "maxItems": 2}, [1, 2], [1, 2, 3]),
        ({"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"a": 1}, {"a": 1, "b": 2}),
        ({"type": "object", "not": {"required": ["a"]}}, {}, {"a": 1}),
        (
            {"type": "object", "maxProperties": 1, "additionalProperties": {"type": "integer"}},
            {"a": 1},
            {"a": 1, "b": 1},
        ),
    ],
)
def test_schema_words(schema: dict[str, Any], good: Any, bad: Any) -> None:
    assert validate(schema, good) == []
    assert validate(schema, bad) != []


SELF = {
    "n": 3, "d": 1.5, "s": "abc", "l": [1, 2, 3], "m": {"a": "x", "dash-ed": 1}, "q": "2Gi", "namespace": "here",
    "items": [{"name": "a", "v": 1}, {"name": "b", "v": 2}],
}  # fmt: skip


@pytest.mark.parametrize(
    "rule",
    [
        "self.n == 3 && self.d > 1.0 && self.n > self.d",
        "!has(self.absent) && has(self.m.a)",
        "!has(self.absent) || self.absent.deep == 1",
        "self.absent == 1 || true",
        "true || self.absent == 1",
        "!(self.absent == 1 && false)",
        "self.l.all(x, x > 0) && self.l.exists(x, x == 2) && self.l.exists_one(x, x > 2)",
        "self.l.exists(x, self.absent == x || x == 2)",
        "self.items.map(i, i.name) == ['a', 'b'] && self.items.filter(i, i.v > 1).size() == 1",
        "self.items.map(i, i.v > 1, i.name) == ['b']",
        "self.m.all(k, k != '') && 'a' in self.m && !('b' in self.m) && 2 in self.l",
        "self.m.__dash__ == 1 || self.m['dash-ed'] == 1",
        "self.__namespace__ == 'here'",
        "self.s.startsWith('a') && self.s.matches('^[a-c]{3}$') && self.s.contains('b') && self.s.size() == 3",
        "self.s.upperAscii() == 'ABC' && self.s.substring(1) == 'bc' && self.s.indexOf('c') == 2",
        "'a,b'.split(',') == ['a', 'b'] && ['a', 'b'].join('-') == 'a-b' && 'x'.replace('x', 'y') == 'y'",
        "self.l.sum() == 6 && self.l.max() == 3 && self.l.isSorted() && self.l.indexOf(3) == 2",
        "quantity(self.q).isGreaterThan(quantity('1Gi')) && quantity('1k').compareTo(quantity('1000')) == 0",
        "isQuantity('1Mi') && !isQuantity('1Q')",
        "duration('90m') > duration('1h') && timestamp('2025-01-01T00:00:00Z') < timestamp('2025-01-02T00:00:00Z')",
        "self.?absent.orValue(7) == 7 && self.?n.orValue(7) == 3 && !self.m[?'zz'].hasValue()",
        "(self.n > 2 ? 'big' : 'small') == 'big'",
        "7 / 2 == 3 && -7 / 2 == -3 && -7 % 3 == -1 && 1 + 2 * 3 == 7 && (1 + 2) * 3 == 9",
        "string(5) + 'x' == '5x' && int('5') == 5 && double('1.5') == 1.5",
        "[1] + [2] == [1, 2] && {'a': 1}.a == 1 && r'\\d' == '\\\\d'",
        "sets.contains([1, 2], [1]) && sets.intersects([1], [1, 2]) && !sets.equivalent([1], [2])",
        "self.m.exists(k, v, k == 'a' && v == 'x')",
        "type(self.n) == int && 'a%d' .format([1]) == 'a1'",
        "'10.0.0.1'.matches('^\\\\d+') && isIP('10.0.0.1') && url('https://h:1/p').getHost() == 'h:1'",
        "size('é') == 1 && null == null && 1 == 1.0",
        r"'\x41\X42\103' == 'ABC' && '\\\'\"\`\?'.size() == 5",
        "!'a\\n'.matches('^a$|^b$') && 'a$'.matches('^[a$)]+$') && 'a\\nb'.matches('(?m)^a$')",
        "[1, 'aba'].exists(x, x.reverse() == 'aba') && ![1, 'aba'].all(x, x.reverse() == 'x')",
        "[1, 'x'].exists(x, url('http://[').getHost() == x || x == 'x')",
        "int(1e308 * 10.0) > 0 || true",
        "!(int(1e308 * 10.0) > 0 && false)",
        "url('http://[').getHost() == '' || true",
        "007 == 7 && 0x1F == 31 && 08u == 8",
        "'\\U0001F600'.size() == 1 && '\\uD800' == '\\uFFFD'",
        r"b'\xff\377'.size() == 2 && b'\x41é' == b'Aé' && br'\x41'.size() == 4 && b'é' == b'\xc3\xa9'",
        "-9223372036854775808 < 0 && 18446744073709551615u > 0",
    ],
)
def test_cel(rule: str) -> None:
    assert compile_expression(rule, ("self", "oldSelf")).evaluate({"self": SELF}) is True


@pytest.mark.parametrize(("operator", "usual", "decisive"), [("&&", "true", "false"), ("||", "false", "true")])
@pytest.mark.parametrize("at", [0, 1, 240, 478, 479])
def test_a_long_chain_is_decided_by_one_of_it(operator: str, usual: str, decisive: str, at: int) -> None:
    """Also where another cannot be evaluated."""
    parts = [usual] * 480

    def outcome() -> Any:
        return compile_expression(f" {operator} ".join(parts), ("self",)).evaluate({"self": SELF})

    assert outcome() is (usual == "true")
    parts[at] = decisive
    assert outcome() is (decisive == "true")
    parts[100] = "self.absent == 1"
    assert outcome() is (decisive == "true")
    parts[at] = usual
    with pytest.raises(CelError, match="no such key: absent"):
        outcome()


@pytest.mark.parametrize(
    "rule",
    ["self.absent == 1", "self.l[9] == 1", "1 / 0 == 1", "9223372036854775807 + 1 > 0", "self.s > 1",
     "self.n + self.s == 1", "self.s ? true : false", "self.n.all(x, true)", "self.l.all(x, self.absent == x)",
     "int('x') == 1"],
)  # fmt: skip
def test_cel_that_cannot_be_evaluated(rule: str) -> None:
    with pytest.raises(CelError):
        compile_expression(rule, ("self",)).evaluate({"self": SELF})


@pytest.mark.parametrize(
    "rule",
    ["", "self.", "1 +", "foo == 1", "nope(1)", "size()", "self.a b", "'open", "has(self)", "for",
     "9223372036854775808 > 0", "18446744073709551616u > 0", "1e400 > 0.0", "1" + "0" * 5000 + " > 0",
     r"b'\u00ff' == b''", "-true == 1", "-'a' == 'a'",
     r"self.s.matches('\d')", r"'\400' == ''", r"'\x4' == ''",
     r"'\UFFFFFFFF' == ''", r"'\U00110000' == ''", "!" * 2000 + "true", "1" + " + 1" * 2000 + " > 0"],
    ids=lambda rule: rule[:30],
)  # fmt: skip
def test_cel_that_is_not_cel(rule: str) -> None:
    with pytest.raises(CelSyntaxError):
        compile_expression(rule, ("self",))
