"""Copy whole KV blocks (copy-on-write)."""
