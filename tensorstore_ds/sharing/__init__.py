"""Push, pull, pack, copy and serve stores."""
