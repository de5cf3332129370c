"""A model that a command is given by name: package.module:function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

FUNCTION = "package.module:function, which returns (model, batch) or (model, batch, loss)"


def import_model(name: str) -> tuple[Any, Any, Any]:
    """(model, batch, loss or None) of what the function returns; modules beside the working directory are found too."""
    import importlib
    import sys

    from bathy.errors import ModelError

    module, _, function = name.partition(":")
    sys.path.append(str(Path.cwd()))  # last: no file of this folder takes a package's place
    try:
        model, batch, *loss = getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ModelError(f"--model {name} does not give (model, batch): {error}; write it as {FUNCTION}") from error
    return model, batch, loss[0] if loss else None
