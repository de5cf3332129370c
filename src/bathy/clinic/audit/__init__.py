"""`bathy.audit`: which scheme a model really is, from its behaviour at the start, and where its code deviates."""

from bathy.clinic.audit.deviation import Deviation
from bathy.clinic.audit.report import Audit, audit

__all__ = ["Audit", "Deviation", "audit"]
