"""The level that directories can be brought to, beside replicas too large to fit under it (giants)."""

from __future__ import annotations

import numpy as np
import pytest

from ballast_planner.levels import _level_and_floor

EMPTY, FULL = np.zeros(2), np.full(2, 100.0)


def leveled(*largest: float) -> tuple[float, list[float]]:
    """Two directories of 100 bytes each, which differ in the largest replica that could come to them."""
    level, floor = _level_and_floor(FULL, EMPTY, np.array(largest), FULL, 100.0, np.array([True, True]), band=0.1)
    return level, floor.tolist()


@pytest.mark.spec("REB-05")
def test_a_replica_that_fits_under_the_band_is_no_giant() -> None:
    level, floor = leveled(30, 54)
    assert level == pytest.approx(0.5)
    assert floor == [0, 0]


@pytest.mark.spec("REB-05")
def test_above_a_giant_the_rest_stands_lower() -> None:
    """Of 100 bytes, 56 are one replica; the other 44 fill the other directory."""
    level, floor = leveled(30, 56)
    assert level == pytest.approx(0.44)
    assert floor == [0, 56]
