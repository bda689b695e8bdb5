"""Models that are told what to look for: prompts, their tokens, the three parts of the model and what they remember."""
