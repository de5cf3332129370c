"""The Transformer and its parts: norms, the residual equation, schemes, attention, feed-forward."""
