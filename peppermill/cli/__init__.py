"""The command line: related commands share a file."""
