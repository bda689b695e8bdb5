"""Resize of a ragged batch of uint8 pictures, pixel for pixel as Pillow's, and normalization into the network input."""
