"""`python -m cmm.simulate`."""

import sys

from cmm.simulate.cli import main

if __name__ == "__main__":  # processes of a sweep import this file again
    sys.exit(main())
