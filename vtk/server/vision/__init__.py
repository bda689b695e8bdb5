"""Pictures in, results out: `/v1/vision/...`."""
