"""docs/configuration.md says what the broker's tables say."""

import runpy
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_page_is_current() -> None:
    made = runpy.run_path(str(DOCS / "make_configuration.py"))["page"]()
    assert (DOCS / "configuration.md").read_text("utf-8") == made
