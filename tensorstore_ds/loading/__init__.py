"""From the mapped columns of a store to batches. Only this package and `training` import torch."""
