"""The best (query, class) pairs of a DETR with their boxes in pixels of the original picture."""
