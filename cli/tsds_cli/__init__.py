"""The `tsds` command: what you type, and what it shows. All work is done by `tensorstore_ds`."""
