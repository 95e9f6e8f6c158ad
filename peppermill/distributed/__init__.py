"""Several processes."""
