"""Images in an LMDB database."""
