"""What is fitted on the averaged log-probabilities."""
