"""From a source, or from what a program makes, to a store."""
