"""Sources whose samples are rows of arrays: NumPy's files and MNIST's."""
