"""`python -m cmm.simulate`."""

import sys

from cmm.core.errors import ExitCode
from cmm.runtime import launch


def main() -> int:
    """The command; it is loaded here so that Ctrl-C is understood from the beginning."""
    launch.open_streams()
    try:
        from cmm.simulate.cli import main as command

        return command()
    except KeyboardInterrupt:
        print("cmm.simulate: stopped", file=sys.stderr)
        return int(ExitCode.STOPPED)


if __name__ == "__main__":  # processes of a sweep import this file again
    sys.exit(main())
