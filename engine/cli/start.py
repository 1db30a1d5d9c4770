"""The command `fanrank`: loads the command line, and ends in one line if it is interrupted meanwhile.

Nothing is imported here but what Python has loaded anyway, so that almost all of the start lies inside `main`.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line with the arguments of the process."""
    try:
        from .main import main as command
    except KeyboardInterrupt:
        sys.stderr.write("fanrank: interrupted\n")
        sys.exit(130)
    command()


if __name__ == "__main__":
    main()
