"""From raw lines to token ids and back: Moses, BPE, and both together as a codec."""

from bathy.nmt.marks import BOS, EOS, PAD, UNK
from bathy.nmt.text.codec import Codec

__all__ = ["BOS", "EOS", "PAD", "UNK", "Codec"]
