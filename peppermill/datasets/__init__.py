"""Splitting data and caching them on disk."""
