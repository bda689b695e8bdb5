"""Mask logits to packed bits, areas and boxes in the original picture."""
