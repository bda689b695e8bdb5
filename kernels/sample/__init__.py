"""One token from each row of logits, drawn where the logits are."""
