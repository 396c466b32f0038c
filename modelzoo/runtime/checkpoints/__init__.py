"""Training checkpoints that cannot be lost: who writes what, published by a rename, read by any layout."""
