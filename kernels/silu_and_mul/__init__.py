"""The gated activation of Llama-style feed-forward layers."""
