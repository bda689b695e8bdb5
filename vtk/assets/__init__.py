"""Files that travel with the package: sample pictures for verify, class names."""
