"""Scores, comparisons and sweeps."""
