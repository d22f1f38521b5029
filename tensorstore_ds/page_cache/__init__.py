"""Find which bytes of a store are in memory; warm, lock and evict them."""
