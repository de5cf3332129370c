"""The clinic: readings of any model through its residual sites, and what they mean."""
