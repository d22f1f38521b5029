"""From batches to a trained model, and what holds training back. Only this package and `loading` import torch."""
