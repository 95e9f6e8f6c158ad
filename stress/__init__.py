"""Hostile tests that take minutes to hours: `make stress`. Their figures are docs/reliability.md."""
