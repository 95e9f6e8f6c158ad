"""Speed and memory, each against a peer or a limit, as ratios measured within one run."""
