"""Greedy class-aware non-maximum suppression of a batch of pictures."""
