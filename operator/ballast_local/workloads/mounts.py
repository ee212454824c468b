"""The volumes of one pod: creates and fills their directories, and maps mount paths to them."""

import os
import re
from pathlib import Path

from ballast_local import meta
from ballast_local.errors import Obj
from ballast_local.workloads.environment import Lookup, field_text, resource_text
from ballast_local.workloads.substitution import Substitution, expand
from ballast_local.workloads.volume import (
    NotYet,
    Texts,
    claim_directory,
    config_texts,
    write_texts,
)


class Mounts:
    def __init__(self, pod: Obj, directory: Path, volumes: Path, lookup: Lookup) -> None:
        self._pod, self._volumes, self._lookup = pod, volumes, lookup
        self._root = directory / "volumes"
        self._specs: dict[str, Obj] = {one["name"]: one for one in pod["spec"].get("volumes") or []}

    def _directory(self, name: str) -> Path:
        """The directory of a volume: claims and host paths have their own, all others are in the pod's directory."""
        spec = self._specs[name]
        if "persistentVolumeClaim" in spec:
            claim = spec["persistentVolumeClaim"]["claimName"]
            metadata = {"namespace": self._pod["metadata"]["namespace"], "name": claim}
            return claim_directory(self._volumes, {"metadata": metadata})
        return Path(spec["hostPath"]["path"]) if "hostPath" in spec else self._root / name

    # what containers see

    def paths(self, container: Obj, variables: dict[str, str]) -> dict[str, str]:
        """mountPath → real directory, for one container."""
        found: dict[str, str] = {}
        for mount in container.get("volumeMounts") or []:
            target = self._directory(mount["name"])
            below = mount.get("subPath") or expand(mount.get("subPathExpr") or "", variables)
            if below:
                inside = Path(os.path.normpath(target / below))
                if not inside.is_relative_to(target):
                    raise NotYet(f"the subPath {below!r} leaves its volume")
                if not inside.exists():
                    inside.mkdir(parents=True)
                target = inside
            found[mount["mountPath"]] = str(target)
        return found

    def all_paths(self) -> dict[str, str]:
        """The mounts of all containers (the first wins), for substitution in mounted files, which containers share."""
        found: dict[str, str] = {}
        for container in self._pod["spec"]["containers"]:
            for mount in container.get("volumeMounts") or []:
                if not mount.get("subPath") and not mount.get("subPathExpr"):
                    found.setdefault(mount["mountPath"], str(self._directory(mount["name"])))
        return found

    def variables(self, container: Obj) -> dict[str, str]:
        """BALLAST_MOUNT_<NAME>: the directory of each mounted volume, for commands that need it."""
        names = {mount["name"] for mount in container.get("volumeMounts") or []}
        return {
            "BALLAST_MOUNT_" + re.sub(r"\W", "_", name).upper(): str(self._directory(name)) for name in sorted(names)
        }

    def uses(self, kind: str, name: str) -> bool:
        """Whether a change of this config map or secret changes a mounted file."""
        field, reference = ("configMap", "name") if kind == "ConfigMap" else ("secret", "secretName")
        for spec in self._specs.values():
            if (spec.get(field) or {}).get(reference) == name:
                return True
            for source in (spec.get("projected") or {}).get("sources") or []:
                if (source.get(field) or {}).get("name") == name:
                    return True
        return False

    # making them

    def prepare(self, substitute: Substitution) -> None:
        """Create or refresh every volume; raises NotYet if something is missing. Blocking: run it in a thread."""
        self._root.mkdir(parents=True, exist_ok=True)
        for name, spec in self._specs.items():
            self._prepare(self._directory(name), name, spec, substitute)

    def _prepare(self, directory: Path, name: str, spec: Obj, substitute: Substitution) -> None:
        if "persistentVolumeClaim" in spec:
            claim_name = spec["persistentVolumeClaim"]["claimName"]
            claim = self._lookup("PersistentVolumeClaim", claim_name)
            if claim is None or meta.is_deleting(claim):
                raise NotYet(f'persistentvolumeclaim "{claim_name}" not found')
            directory.mkdir(parents=True, exist_ok=True)
        elif "hostPath" in spec:
            if not directory.exists():
                raise NotYet(f"the host path {directory} does not exist")
        elif "emptyDir" in spec:
            directory.mkdir(exist_ok=True)
        else:
            texts, mode = self._texts(spec, name)
            write_texts(directory, texts, substitute, mode)

    def _texts(self, spec: Obj, name: str) -> tuple[Texts, int]:
        for field in ("configMap", "secret", "downwardAPI"):
            if field in spec:
                return self._source(field, spec[field]), spec[field].get("defaultMode", 0o644)
        if "projected" in spec:
            found: Texts = {}
            for source in spec["projected"].get("sources") or []:
                for field, value in source.items():
                    found |= self._source(field, value)
            return found, spec["projected"].get("defaultMode", 0o644)
        raise NotYet(f"volume {name!r} is of a kind that the embedded Kubernetes API does not have")

    def _downward(self, item: Obj) -> str:
        if "fieldRef" in item:
            return field_text(self._pod, item["fieldRef"]["fieldPath"])
        reference = item["resourceFieldRef"]
        containers = {one["name"]: one for one in self._pod["spec"]["containers"]}
        return resource_text(containers.get(reference.get("containerName"), {}), reference)

    def _source(self, field: str, source: Obj) -> Texts:
        if field == "downwardAPI":
            items = source.get("items") or []
            return {one["path"]: self._downward(one).encode() for one in items}
        if field not in ("configMap", "secret"):
            raise NotYet(f"the projected source {field!r} is not supported by the embedded Kubernetes API")
        secret = field == "secret"
        kind, name = (
            ("Secret", source.get("secretName") or source.get("name")) if secret else ("ConfigMap", source["name"])
        )
        held = self._lookup(kind, str(name))
        if held is None:
            if source.get("optional"):
                return {}
            raise NotYet(f'{kind.lower()} "{name}" not found')
        return config_texts(held, source.get("items"), kind.lower(), secret)
