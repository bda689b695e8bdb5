"""What embeddings are for: the pictures nearest to one, and those that are nearly the same."""
