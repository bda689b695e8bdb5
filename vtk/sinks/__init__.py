"""Result writers, one per output format."""
