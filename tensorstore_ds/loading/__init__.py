"""Load batches from the mapped columns of a store."""
