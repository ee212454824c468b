"""Provides a class for each Kafka message, for both directions, by an adapter of kafka-python's message engine.

`message("MetadataResponse")` returns the class, created at first use (all at once would cost 0.3 s and 15 MB).
The version is a parameter of encoding, not needed to build a message. A response that has a version of its own is
encoded in that one instead of its request's (ApiVersions, if the request's version is unknown).
Schemas come from kafka-python; those it lacks (inter-broker RPCs, metadata and group records) are ours, in `schemas/`.
Importing the package `kafka` would load its whole client; in the broker only the protocol part is loaded.
"""

from __future__ import annotations

import importlib.resources
import importlib.util
import sys
import types
from functools import cache
from typing import Any, ClassVar

from ballast_wire.strict import make_strict

OWN_SCHEMAS = "ballast_wire.schemas"


def _enter_kafka_package() -> None:
    """Make `kafka.protocol` importable without running `kafka/__init__`, unless that is imported already."""
    if "kafka" in sys.modules:
        return
    spec = importlib.util.find_spec("kafka")
    if spec is None or spec.submodule_search_locations is None:
        raise ImportError("kafka-python is not installed")
    package = types.ModuleType("kafka")
    package.__path__ = list(spec.submodule_search_locations)
    package.__spec__ = spec
    sys.modules["kafka"] = package


@cache
def _bases() -> tuple[Any, ...]:
    """The base classes of requests and responses, those of records, and the parts of coders: the class that emits their
    source, and the buffer they write to."""
    partial = "kafka" not in sys.modules
    _enter_kafka_package()
    try:
        from kafka.protocol import api_data, api_message, schemas
        from kafka.protocol.schemas.fields import codegen, struct
        from kafka.protocol.schemas.fields.codecs import encode_buffer
        from kafka.protocol.schemas.fields.codecs import types as codecs
    finally:
        if partial:  # leave no partial package for somebody who imports the client
            sys.modules.pop("kafka", None)
            sys.modules.pop("kafka.protocol", None)
    make_strict(codecs, struct.StructField)
    engine: Any = api_message.ApiMessage

    class Message:
        """A mixin that overrides two things of the engine's class that serve only its own client."""

        __slots__ = ()
        _json: ClassVar[dict[str, Any]]
        _flexible_versions: ClassVar[Any]
        _valid_versions: ClassVar[Any]

        def __init_subclass__(cls) -> None:
            # Skip the engine's method, which registers each class for its client's decoding of responses.
            super(engine, cls).__init_subclass__()
            cls._flexible_versions = schemas.BaseField.parse_versions(cls._json["flexibleVersions"])
            cls._valid_versions = schemas.BaseField.parse_versions(cls._json["validVersions"])

        @classmethod
        def decode(cls, *data: Any, **how: Any) -> Any:
            """Drop the header, so that the message can be encoded again: requests are forwarded to controllers."""
            found = super().decode(*data, **how)  # type: ignore[misc]
            found._header = None
            return found

    return (Message, engine), (api_data.ApiData,), (codegen.CodegenContext, encode_buffer.EncodeBuffer)


def parts_of_coders() -> tuple[Any, Any]:
    emitter, buffer = _bases()[2]
    return emitter, buffer


@cache
def message(name: str) -> Any:
    """The class of the request, response or record called `name` (Kafka's own name)."""
    request_or_answer, record, _ = _bases()
    bases = request_or_answer if name.endswith(("Request", "Response")) else record
    own = importlib.resources.files(OWN_SCHEMAS).joinpath(f"{name}.json").is_file()
    return types.new_class(name, bases, {"load_json": OWN_SCHEMAS} if own else {})
