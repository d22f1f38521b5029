"""Open a store, gather rows and verify bytes, with NumPy only."""
