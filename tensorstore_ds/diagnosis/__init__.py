"""What holds training back on this machine with this store, measured in less than a minute, and what to change."""
