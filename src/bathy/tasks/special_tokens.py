"""The four special tokens that every vocabulary begins with, and their ids."""

from __future__ import annotations

SPECIALS = ["<pad>", "<unk>", "<s>", "</s>"]
PAD, UNK, BOS, EOS = range(4)
