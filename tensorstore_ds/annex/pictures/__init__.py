"""Contact sheets, and what all pictures share."""
