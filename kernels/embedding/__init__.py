"""Rows of an embedding table in any weight format."""
