"""How m members run."""
