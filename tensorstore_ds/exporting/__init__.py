"""A store as files in the formats of others: `export` walks through it, `FORMATS` lists the formats."""
