"""From raw lines to token ids and back: Moses, BPE, and both together as a codec."""

from bathy.tasks.special_tokens import BOS, EOS, PAD, UNK
from bathy.tasks.translation.text.codec import Codec

__all__ = ["BOS", "EOS", "PAD", "UNK", "Codec"]
