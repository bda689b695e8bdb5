"""Runtimes behind one protocol."""
