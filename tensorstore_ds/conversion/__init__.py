"""Convert a source, or samples that a program makes, into a store."""
