"""Language modelling: causal (decoder layers only) and masked (encoder layers only), from plain text to samples and exports."""
