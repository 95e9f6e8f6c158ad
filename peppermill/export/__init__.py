"""The ensemble as one file for other runtimes."""
