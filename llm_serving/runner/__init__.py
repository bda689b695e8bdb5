"""Model runners: one protocol, a plain reference and the fast ones."""
