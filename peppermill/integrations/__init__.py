"""PEP inside other libraries: one file for each library, imported on first use."""
