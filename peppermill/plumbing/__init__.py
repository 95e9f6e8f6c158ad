"""What every room needs: files, nested batches, devices, warnings, optional libraries, progress."""
