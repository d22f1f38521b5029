"""`tsds serve`: stores by HTTP."""
