"""What holds training back on this machine with this store, measured in a minute or two, and what to change."""
