"""Where a store's bytes are, and how they are brought to memory, held there, or dropped."""
