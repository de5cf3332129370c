"""Residual sites, of our models and of other people's: what one is, how to find them, and the batches that run them."""

from bathy.sites.batch import Batch
from bathy.sites.hooks import Sites, TracedSite
from bathy.sites.site import DeclaredSite, Handle, Moment, Site, declared_sites
from bathy.sites.trace import find_sites

__all__ = ["Batch", "DeclaredSite", "Handle", "Moment", "Site", "Sites", "TracedSite", "declared_sites", "find_sites"]
