# mypy: disable-error-code="import-not-found"
"""torchvision and timm, which may stand in a folder of their own: torchvision's wheel on the index is built for CUDA."""

import os
import sys
from pathlib import Path

import torch

FOLDER = os.environ.get("BATHY_ZOO", ".venv/zoo")
OPERATIONS = ["nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"]
_library: list[torch.library.Library] = []


def torchvision_ready() -> None:
    """Make both importable, or raise ImportError. Operations that the build without CUDA lacks are declared, not defined."""
    if Path(FOLDER).is_dir() and FOLDER not in sys.path:
        sys.path.append(FOLDER)
    try:
        import torchvision
    except RuntimeError:  # operator torchvision::nms does not exist
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        _library.append(torch.library.Library("torchvision", "FRAGMENT"))
        for schema in OPERATIONS:
            _library[0].define(schema)
            _library[0].define(f"q{schema}")
        import torchvision  # noqa: F401


__all__ = ["torchvision_ready"]
