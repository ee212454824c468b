"""Makes an image that stands for the next release: the current one, with brokers that support one more feature."""

from __future__ import annotations

import os
import py_compile
import sys
import tempfile
from pathlib import Path

from ballast_cli.image_archive import write_layer
from ballast_cli.image_contents import PLACE, PYTHON

FEATURE = "ballast.example.version"
MODULE = Path("broker-image/ballast_broker/metadata/features.py")
SOURCE = Path(__file__).resolve().parents[2] / MODULE
LAST_FEATURE = "    ELIGIBLE_LEADER_REPLICAS: (0, 1),\n"


def write_next_layer(path: Path) -> None:
    """A layer on top of the current image: one module, and its .pyc, which the image does not check for staleness."""
    text = SOURCE.read_text()
    assert text.count(LAST_FEATURE) == 1
    with tempfile.TemporaryDirectory(dir=path.parent) as place:
        module = Path(place) / MODULE
        module.parent.mkdir(parents=True)
        module.write_text(text.replace(LAST_FEATURE, f'{LAST_FEATURE}    "{FEATURE}": (0, 1),\n'))
        if sys.version_info[:2] == PYTHON:
            compiled = module.parent / "__pycache__" / f"features.{sys.implementation.cache_tag}.pyc"
            inside = f"{PLACE}/{MODULE}"
            mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
            py_compile.compile(os.fspath(module), os.fspath(compiled), inside, doraise=True, invalidation_mode=mode)
        write_layer(path, Path(place), PLACE)
