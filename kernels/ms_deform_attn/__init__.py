"""Multi-scale deformable attention: weighted bilinear samples of value maps."""
