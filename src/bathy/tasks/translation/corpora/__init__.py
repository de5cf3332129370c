"""Parallel text: where it comes from and how it lies on disk."""
