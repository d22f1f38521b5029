"""Train models on a store and predict with them."""
