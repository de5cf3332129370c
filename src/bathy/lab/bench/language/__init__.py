"""Comparisons of language models on one text: what parts, depth and the place of the norm give, at equal updates and tokens."""
