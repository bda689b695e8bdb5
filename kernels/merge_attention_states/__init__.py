"""Joins attention over two parts of the keys."""
