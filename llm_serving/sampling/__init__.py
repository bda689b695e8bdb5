"""From a row of logits to a token, and from tokens to text."""
