"""Data sets of other libraries over a store; each module imports its library."""
