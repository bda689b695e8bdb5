"""Rotary position embedding of queries and keys, and the store of keys and values."""
