"""Eq. 8: the searches for sigma*."""
