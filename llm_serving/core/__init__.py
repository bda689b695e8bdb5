"""The part of the engine that knows no tensor: requests, blocks, prefix cache, scheduler."""
