"""Another package that watches training, on the same runs: trainscope, by the detector that it applies to the loss."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

DETECTOR = "trainscope.core.detectors.changepoint"


def installed() -> bool:
    """Whether trainscope and what it needs are there."""
    try:
        importlib.import_module(DETECTOR)
    except ImportError:
        return False
    return True


def change_point(losses: Sequence[float | None]) -> int | None:
    """The update at which its detector, with its own settings, reports the loss, or the loss is not finite.

    It reports changes to either side; one towards a lower loss is no alarm.
    """
    detector = importlib.import_module(DETECTOR).ChangePointDetector()
    for step, loss in enumerate(losses, 1):
        if loss is None or (detector.update(loss) or 0.0) > 0:
            return step
    return None
