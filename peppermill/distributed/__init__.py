"""Several processes: who they are, and the one place where their results meet."""
