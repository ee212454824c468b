"""The behaviour that depends on the kind: defaults, validation, conversion between versions, grace on deletion.

The pipeline (`objects`) calls it at every write. Custom resources are handled by their schema, built-in kinds by
`builtin_defaults` and `builtin_checks`.
"""

import copy
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from ballast_local import apply_fields, meta
from ballast_local.builtin_checks import check_built_in
from ballast_local.builtin_defaults import default_built_in
from ballast_local.builtin_schemas import BuiltInSchemas
from ballast_local.builtin_shapes import missing_parts
from ballast_local.crd_checks import check_definition, default_definition
from ballast_local.definitions import establish
from ballast_local.errors import ApiError, Obj, bad_request, forbidden, invalid
from ballast_local.events import event_to_core, event_to_events
from ballast_local.field_sets import describe
from ballast_local.field_types import RootType
from ballast_local.resources import Resource
from ballast_local.rules import RuleSet
from ballast_local.schema import ABSENT, apply_defaults, prune, validate

PROTECTED_NAMESPACES = ("default", "kube-system")


class Strategy:
    def __init__(self, schemas: BuiltInSchemas) -> None:
        self._schemas = schemas
        # by resource and version, with the schema that they were compiled from, to detect a changed definition
        self._rules: dict[tuple[str, str], tuple[Obj, RuleSet]] = {}

    def prepare(
        self,
        resource: Resource,
        new: Obj,
        old: Obj | None,
        field_validation: str,
        warn: Callable[[str], None],
        subresource: str = "",
    ) -> None:
        """Complete the new version with defaults and validate it; raises Invalid or BadRequest."""
        name = new["metadata"].get("name", "")
        strange = meta.unknown_fields(new["metadata"])
        meta.tidy(new["metadata"])
        causes = meta.causes_of(new["metadata"], not resource.custom and resource.kind != "CustomResourceDefinition")
        if old is None:
            causes += meta.name_causes(resource.plural, name)
        if resource.custom:
            self._report_unknown(resource, strange + prune(self._schema(resource), new), field_validation, warn)
            causes += self._prepare_custom(resource, new, old)
        else:
            strange += self._schemas.unknown_fields(resource, new, field_validation)
            self._report_unknown(resource, strange, field_validation, warn)
            default_built_in(resource, new, old)
            if resource.kind == "CustomResourceDefinition" and subresource != "status":
                default_definition(new)
                causes += check_definition(new, old)
                if not causes:
                    establish(new)
            causes += missing_parts(resource, new) or check_built_in(resource, new, old, subresource)
        if causes:
            raise invalid(resource.group, resource.kind, name, causes)

    def _schema(self, resource: Resource) -> Obj:
        assert resource.schema is not None
        return resource.schema

    def _prepare_custom(self, resource: Resource, new: Obj, old: Obj | None) -> list[Obj]:
        schema = self._schema(resource)
        apply_defaults(schema, new)
        causes = validate(schema, new, old=ABSENT if old is None else old)
        if causes:
            return causes
        held = self._rules.get((resource.key, resource.version))
        if held is None or held[0] is not schema:
            held = self._rules[(resource.key, resource.version)] = (schema, RuleSet(schema))
        return held[1].check(new, old)

    def _report_unknown(
        self, resource: Resource, paths: list[str], field_validation: str, warn: Callable[[str], None]
    ) -> None:
        if not paths or field_validation == "Ignore":
            return
        if field_validation == "Strict":
            listed = ", ".join(f'unknown field "{path}"' for path in paths)
            what = f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}'
            raise bad_request(f"{what}: strict decoding error: {listed}")
        for path in paths:
            warn(f'unknown field "{path}"')

    def check_applied(self, resource: Resource, config: Obj) -> None:
        """Refuse unknown fields and duplicate items in an applied configuration, whatever the fieldValidation."""
        strange = meta.unknown_fields(config["metadata"])
        if resource.custom:
            strange += prune(self._schema(resource), copy.deepcopy(config))
        fault = f".{min(strange)}: field not declared in schema" if strange else ""
        twice = apply_fields.duplicate(config, RootType(resource.schema))
        if twice and not fault:
            keyed = "key" if twice[-1].startswith("k:") else "set element"
            fault = f"{describe(twice[:-1])}: duplicate entries for {keyed} {describe(twice[-1:])}"
        if fault:
            name, namespace = config["metadata"].get("name", ""), config["metadata"].get("namespace", "")
            what = f"({namespace}/{name}; {resource.api_version}, Kind={resource.kind})"
            raise ApiError(500, "", f"failed to create typed patch object {what}: {fault}")

    # versions

    def served(self, resource: Resource, obj: Obj) -> Obj:
        """Convert a stored object to the resource's version."""
        if resource.plural == "events" and resource.group == "events.k8s.io":
            return event_to_events(obj)
        obj["apiVersion"] = resource.api_version
        return obj

    def stored(self, resource: Resource, obj: Obj) -> Obj:
        if resource.plural == "events" and resource.group == "events.k8s.io":
            return event_to_core(obj)
        if obj["apiVersion"] != resource.storage_api_version:
            return obj | {"apiVersion": resource.storage_api_version}
        return obj

    # deletion

    def check_delete(self, resource: Resource, obj: Obj) -> None:
        name = obj["metadata"]["name"]
        if resource.key == "namespaces." and name in PROTECTED_NAMESPACES:
            raise forbidden("", "namespaces", name, "this namespace may not be deleted")

    def grace_seconds(self, resource: Resource, obj: Obj, asked: int | None) -> int:
        """Only pods have a grace period: the requested one, else that of an earlier deletion, else the spec's."""
        if resource.key != "pods.":
            return 0
        if asked is not None:
            return max(0, asked)
        held = obj["metadata"].get("deletionGracePeriodSeconds")
        grace = obj["spec"].get("terminationGracePeriodSeconds", 30) if held is None else held
        return int(grace)

    def deletion_time(self, grace: int) -> str:
        return (datetime.now(UTC) + timedelta(seconds=grace)).strftime("%Y-%m-%dT%H:%M:%SZ")
