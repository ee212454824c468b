"""One class per Kafka message, version as a field, both directions: kafka-python's engine behind one adapter.

`message("MetadataResponse")` returns the class; it is made at first use (all at once would cost 0.3 s and 15 MB).
Versions belong to encoding: what a message is made of needs none. A response that names one is encoded in that one,
and not in its request's (ApiVersions, where the request's is unknown).
Schemas come from kafka-python; those it lacks (inter-broker RPCs, metadata and group records) are ours, in `schemas/`.
kafka-python's own package start would import its whole client; in the broker only the protocol part is loaded.
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
    """Make `kafka.protocol` importable without running `kafka/__init__`, unless somebody imported it whole already."""
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
    """What requests and answers are made from, what records are made from, and of what coders are made: what emits
    their source, and what they write to."""
    partial = "kafka" not in sys.modules
    _enter_kafka_package()
    try:
        from kafka.protocol import api_data, api_message, schemas
        from kafka.protocol.schemas.fields import codegen, struct
        from kafka.protocol.schemas.fields.codecs import encode_buffer
        from kafka.protocol.schemas.fields.codecs import types as codecs
    finally:
        if partial:  # leave no half package behind for somebody who wants the client, by whichever door
            sys.modules.pop("kafka", None)
            sys.modules.pop("kafka.protocol", None)
    make_strict(codecs, struct.StructField)
    engine: Any = api_message.ApiMessage

    class Message:
        """Goes before the engine's class and replaces two things that serve the engine's own client."""

        __slots__ = ()
        _json: ClassVar[dict[str, Any]]
        _flexible_versions: ClassVar[Any]
        _valid_versions: ClassVar[Any]

        def __init_subclass__(cls) -> None:
            # The engine's method enters each class in the table by which its client decodes answers: passed over.
            super(engine, cls).__init_subclass__()
            cls._flexible_versions = schemas.BaseField.parse_versions(cls._json["flexibleVersions"])
            cls._valid_versions = schemas.BaseField.parse_versions(cls._json["validVersions"])

        @classmethod
        def decode(cls, *data: Any, **how: Any) -> Any:
            """What comes out can be encoded again: requests are forwarded to controllers."""
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
