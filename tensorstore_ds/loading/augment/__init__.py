"""Augmentation of whole batches, on the device that they are on."""
