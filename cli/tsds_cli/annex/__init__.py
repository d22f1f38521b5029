"""The commands around the core: they use `tsds_cli`, which knows them only by its list of commands."""
