"""Other packages that watch training, on the same runs: trainscope and torchmortem, by the detectors they apply to the loss."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

Losses = Sequence[float | None]
CHANGES = "trainscope.core.detectors.changepoint"
AUTOPSY = "torchmortem"
EVERY = 8
"""Updates after which torchmortem, which looks back on a run, is asked: as often as the monitor samples."""


def change_point(losses: Losses) -> int | None:
    """The update at which trainscope's detector, with its own settings, reports the loss, or the loss is not finite.

    It reports changes to either side; one towards a lower loss is no alarm.
    """
    detector = importlib.import_module(CHANGES).ChangePointDetector()
    for step, loss in enumerate(losses, 1):
        if loss is None or (detector.update(loss) or 0.0) > 0:
            return step
    return None


def autopsy(losses: Losses) -> int | None:
    """The first update at which torchmortem's look back on the losses so far has a finding of at least a warning."""
    package = importlib.import_module(AUTOPSY)
    collector = importlib.import_module(f"{AUTOPSY}.collectors.loss").LossCollector()
    detector = importlib.import_module(f"{AUTOPSY}.detectors.loss_dynamics").LossDynamicsDetector()
    collector.attach(None, None, package.SamplingConfig())
    for step, loss in enumerate(losses, 1):
        if loss is None:
            return step
        collector.on_step(step, loss=loss)
        found = detector.analyze({"loss": collector.state()}, package.RunMetadata()) if step % EVERY == 0 else []
        if any(finding.severity >= package.Severity.WARNING for finding in found):
            return step
    return None


PACKAGES: dict[str, tuple[str, Callable[[Losses], int | None]]] = {
    "trainscope (change points of the loss)": (CHANGES, change_point),
    "torchmortem (dynamics of the loss)": (AUTOPSY, autopsy),
}
"""What is compared, the module it needs, and when it warns."""


def installed() -> dict[str, Callable[[Losses], int | None]]:
    """The packages that are there with all they need."""
    found = {}
    for name, (module, warner) in PACKAGES.items():
        try:
            importlib.import_module(module)
        except ImportError:
            continue
        found[name] = warner
    return found
