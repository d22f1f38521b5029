"""Ways to load one data set, side by side on this machine: ``tsds bench``."""
