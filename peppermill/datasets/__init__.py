"""DataLoaders with other options, splits of the data, and their cache on disk."""
