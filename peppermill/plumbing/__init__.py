"""What every room needs: files, nested batches, networks, warnings, optional libraries, progress."""
