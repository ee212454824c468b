"""One class per Kafka message, version as a field, both directions: kafka-python's engine behind one adapter.

`message("MetadataResponse")` returns the class; it is made at first use (all at once would cost 0.3 s and 15 MB).
Schemas come from kafka-python; those it lacks (inter-broker RPCs, metadata and group records) are ours, in `schemas/`.
kafka-python's own package start would import its whole client; in the broker only the protocol part is loaded.
"""

from __future__ import annotations

import functools
import importlib.resources
import importlib.util
import sys
import types
from functools import cache
from typing import Any

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
def _engine() -> Any:
    partial = "kafka" not in sys.modules
    _enter_kafka_package()
    try:
        from kafka.protocol import api_data, api_header, api_message
    finally:
        if partial:  # leave no half package behind for somebody who wants the client
            sys.modules.pop("kafka", None)
    responses: dict[int, Any] = api_header.ResponseClassRegistry._response_class_registry
    return types.SimpleNamespace(message=api_message.ApiMessage, data=api_data.ApiData, responses=responses)


@cache
def message(name: str) -> Any:
    """The class of the request, response or record called `name` (Kafka's own name)."""
    engine = _engine()
    own = importlib.resources.files(OWN_SCHEMAS).joinpath(f"{name}.json").is_file()
    base = engine.message if name.endswith(("Request", "Response")) else engine.data
    keywords: dict[str, Any] = {"load_json": OWN_SCHEMAS} if own else {}
    registered = dict(engine.responses)
    made: Any = types.new_class(name, (base,), keywords)
    engine.responses.clear()  # the engine gives answers to its own client by this table: ours do not belong there
    engine.responses.update(registered)
    if base is engine.message:
        made.decode = classmethod(functools.partial(_decode, base))
    return made


def _decode(base: Any, kind: Any, *data: Any, **how: Any) -> Any:
    """As the engine decodes, but what comes out can be encoded again: requests are forwarded to controllers."""
    found = base.decode.__func__(kind, *data, **how)
    found._header = None
    return found
