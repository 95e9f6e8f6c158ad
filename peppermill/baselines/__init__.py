"""What PEP is compared with: one file each."""
