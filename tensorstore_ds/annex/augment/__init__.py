"""Augmentations beyond crops, flips and resizing."""
