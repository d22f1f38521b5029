"""Stores made of stores: rows are chosen, divided and put together. No image is decoded."""
