"""PEP inside other libraries: one file for each, which alone imports it and is itself imported only when asked for."""
