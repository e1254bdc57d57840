"""NumPy on all cores: one process, the product as one call."""

from __future__ import annotations

import time

import numpy as np

from benchmarks.rivals.programs.common import begin, parser, ready


def main() -> None:
    options = parser(__doc__).parse_args()
    start = time.perf_counter()
    begin(options, 1)
    A, B = np.load(options.a), np.load(options.b)
    ready(options, start, A.T @ B)


if __name__ == "__main__":
    main()
