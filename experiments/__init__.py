"""The tables and figures of the paper, made with the public names of `peppermill`: `python -m experiments --help`."""
