"""The ensemble as one file that needs neither peppermill nor the network's code."""
