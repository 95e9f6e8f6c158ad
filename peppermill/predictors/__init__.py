"""The methods that PEP is compared with."""
