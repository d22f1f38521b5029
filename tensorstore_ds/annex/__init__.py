"""Everything around the core: the core reaches it only through registries (`tensorstore_ds.plugins`)."""
