"""Commands around the core. They use `tsds_cli`, which refers to them only in its list of commands."""
