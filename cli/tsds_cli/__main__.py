"""``python -m tsds_cli`` is ``tsds``."""

from tsds_cli.program import main

if __name__ == "__main__":
    main()
