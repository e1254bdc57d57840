"""`python -m cmm.bench`."""

import sys

from cmm.bench.cli import main

if __name__ == "__main__":
    sys.exit(main())
