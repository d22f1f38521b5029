"""Images that are larger than memory, read and stored by parts."""
