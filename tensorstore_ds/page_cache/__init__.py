"""Find which bytes of a store are in memory; warm and evict them."""
