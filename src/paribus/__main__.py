"""How the program starts: Ctrl-C ends it quietly from the first moment, also while its own modules load."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    try:
        from paribus import cli

        cli.main()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
