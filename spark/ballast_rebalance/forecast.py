"""How large each replica will be: growth within the window, capped where retention has been seen at work (REB-04).

PURE: arrays in, arrays out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def predict_sizes(size: Floats, growth_per_second: Floats, peak: Floats, horizon_s: float) -> Floats:
    """Sizes after the horizon. NaN in growth or peak means no history: such a replica keeps its size.

    A replica that was larger within the window than it is now is being deleted from: it grows to that peak at most.
    One that shrinks shrinks on, so that nothing is moved that is about to be deleted.
    """
    growth = np.nan_to_num(growth_per_second, nan=0.0)
    predicted = size + growth * horizon_s
    highest = np.where(np.isnan(peak), size, peak)
    retained = highest > size
    capped = np.where(retained, np.minimum(predicted, highest), predicted)
    result: Floats = np.maximum(np.where(growth == 0, size, capped), 0.0)
    return result
