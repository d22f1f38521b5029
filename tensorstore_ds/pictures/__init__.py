"""Contact sheets, and what all pictures have in common."""
