"""Find problems in a store's content: duplicates, leaks between splits, conflicting labels, blank images."""
