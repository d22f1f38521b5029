"""Stores are passed on: pushed, pulled, packed into one file, and served."""
