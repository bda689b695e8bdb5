"""Root-mean-square normalization with an optional fused residual addition."""
