"""The same numbers, faster: each kernel has a plain counterpart, and `choose` says which one a tensor takes."""
