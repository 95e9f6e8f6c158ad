"""Section 2.3 and Appendix A: the PEP effect near theta*, from derivatives and from small steps."""
