"""Predictions for data of any length: read in numbered batches, written in parts, and resumed after anything."""
