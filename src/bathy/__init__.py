"""bathy: train Transformers as deep as you like, and see why they fail when they do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bathy.admin.fold import fold as fold
    from bathy.admin.profile import Profile as Profile
    from bathy.admin.profile import profile as profile
    from bathy.admin.remedies import stabilise_ as stabilise_
    from bathy.clinic.audit.report import Audit as Audit
    from bathy.clinic.audit.report import audit as audit
    from bathy.clinic.examination import Examination as Examination
    from bathy.clinic.examination import examine as examine
    from bathy.clinic.forecast import Forecast as Forecast
    from bathy.clinic.monitor import Monitor as Monitor
    from bathy.clinic.predict import predict as predict
    from bathy.core.residual import Residual as Residual
    from bathy.core.schemes import SCHEMES as SCHEMES
    from bathy.core.transformer import PRESETS as PRESETS
    from bathy.core.transformer import Transformer as Transformer
    from bathy.core.transformer import TransformerConfig as TransformerConfig
    from bathy.sites.storage import load as load
    from bathy.sites.storage import save as save
    from bathy.sites.trace import find_sites as find_sites
else:
    # Torch is imported when the first of these names is used (PEP 562). A type checker reads the imports above
    # instead: it would take a module's __getattr__ to mean that any name exists. tests/test_typing.py compares the two.
    EXPORTS = {
        "Audit": "bathy.clinic.audit.report",
        "Examination": "bathy.clinic.examination",
        "Forecast": "bathy.clinic.forecast",
        "Monitor": "bathy.clinic.monitor",
        "PRESETS": "bathy.core.transformer",
        "Profile": "bathy.admin.profile",
        "Residual": "bathy.core.residual",
        "SCHEMES": "bathy.core.schemes",
        "Transformer": "bathy.core.transformer",
        "TransformerConfig": "bathy.core.transformer",
        "audit": "bathy.clinic.audit.report",
        "examine": "bathy.clinic.examination",
        "find_sites": "bathy.sites.trace",
        "fold": "bathy.admin.fold",
        "load": "bathy.sites.storage",
        "predict": "bathy.clinic.predict",
        "profile": "bathy.admin.profile",
        "save": "bathy.sites.storage",
        "stabilise_": "bathy.admin.remedies",
    }
    __all__ = sorted(EXPORTS)

    def __getattr__(name):
        if name not in EXPORTS:
            raise AttributeError(f"module 'bathy' has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(EXPORTS[name]), name)

    def __dir__():
        return __all__
