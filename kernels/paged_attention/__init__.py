"""Causal attention of new tokens over paged KV blocks: decode and prefill chunks in one op."""
