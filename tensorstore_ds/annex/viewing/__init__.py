"""A viewer in the browser: a page of plain JavaScript that reads a store by ranges."""
