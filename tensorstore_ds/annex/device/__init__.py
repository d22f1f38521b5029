"""Steps of a loader that a GPU does: decoding, and batches in the same memory."""
