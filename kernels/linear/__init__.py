"""Matrix products with weights as their file stores them."""
