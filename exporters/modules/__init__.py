"""Torch modules that vtk writes itself, in the key layout of the official checkpoints."""
