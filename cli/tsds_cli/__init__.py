"""The `tsds` command: what a user types, and what is shown. All work is done by `tensorstore_ds`."""
