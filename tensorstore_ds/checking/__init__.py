"""What is wrong with the content of a store: copies, leaks between splits, labels that disagree, blank images."""
