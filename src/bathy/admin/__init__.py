"""Admin: profile a batch, apply a remedy, fold ω away."""

from bathy.admin.profile import needs_profile

__all__ = ["needs_profile"]
