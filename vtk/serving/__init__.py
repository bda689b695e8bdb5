"""What the server runs on: models that are leased, batches that are admitted, memory that is budgeted."""
