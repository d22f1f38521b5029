"""Stores that are reached by URL."""
