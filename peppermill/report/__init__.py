"""A run as a JSON file, an HTML page, tables and pictures."""
