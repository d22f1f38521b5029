"""Open a store, gather its rows, check its bytes. NumPy only."""
