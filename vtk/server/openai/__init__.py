"""OpenAI's HTTP protocol: chat, completions, embeddings, models."""
