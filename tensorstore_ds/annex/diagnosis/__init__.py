"""Measure what limits training on this machine with this store, and suggest what to change."""
