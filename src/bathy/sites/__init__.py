"""Residual sites, of our models and of other people's: what one is, how to find them, and the batches that run them."""

from bathy.sites.batch import Batch
from bathy.sites.site import DeclaredSite, Moment, Site, declared_sites

__all__ = ["Batch", "DeclaredSite", "Moment", "Site", "declared_sites"]
