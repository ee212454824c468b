"""Forecasts the size of each partition: growth within the window, capped where retention is at work (REB-04).

PURE: arrays in, arrays out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def sustained_growth(size: Floats, halfway: Floats, before: Floats, window_s: float) -> Floats:
    """Bytes per second over a window, from the sizes now, in its middle and at its beginning; NaN without the latter.

    A partition that shrank goes on as in the half of the window in which it grew more: bytes that retention deleted
    once are no sign that as many will go again. Only a partition that shrank in both halves keeps shrinking.
    """
    whole = (size - before) / window_s
    halves = np.maximum(halfway - before, size - halfway) / (window_s / 2)
    growth: Floats = np.where(whole < 0, np.nan_to_num(halves, nan=0.0), whole)
    return growth


def predict_sizes(size: Floats, growth_per_second: Floats, peak: Floats, rise: Floats, horizon_s: float) -> Floats:
    """Sizes after the horizon. NaN in growth means no history: such a partition keeps its size.

    `peak` is the largest size within the window of a partition that lost bytes in it, NaN for others: retention or
    compaction is at work there, so it grows to that peak at most, even if it is at its peak now. `rise`: by how many
    bytes per second its peaks grow, where it takes in more than retention deletes. A shrinking partition keeps
    shrinking, so that nothing is moved that is about to be deleted.
    """
    predicted = size + np.nan_to_num(growth_per_second, nan=0.0) * horizon_s
    highest = peak + np.nan_to_num(rise, nan=0.0) * horizon_s
    capped = np.where(peak >= size, np.minimum(predicted, highest), predicted)
    result: Floats = np.maximum(capped, 0.0)
    return result
