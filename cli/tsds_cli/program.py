"""The program ``tsds``: signals are handled before anything else is imported."""

from __future__ import annotations

import signal

from tsds_cli import signals


def main() -> None:
    """Run the command line."""
    try:
        with signals.terminable():
            from tsds_cli.main import main as run

            run()
    except KeyboardInterrupt:  # between the imports and the command, or behind it
        signals.end()
    finally:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python, as it ends, would print a traceback


if __name__ == "__main__":
    main()
