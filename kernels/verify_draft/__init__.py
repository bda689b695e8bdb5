"""How many tokens of a draft the model itself would have produced."""
