"""Jobs stopped at random moments and resumed: `python -m tests.mpi.interruptions [RUNS]` prints a table.

Each run gets SIGUSR1, SIGTERM or SIGKILL, to the launcher or to the master, once a random number of results is there;
then the same line is run again. Any wrong C, and any accepted result that is computed again, is an error.
"""

from __future__ import annotations

import random
import signal
import sys
import tempfile
from pathlib import Path

import numpy as np

from tests.mpi.conftest import Inputs
from tests.mpi.launch import vendor
from tests.mpi.test_resume import SLOW, Job, check_complete, computed

HEAD = ["| signal | target | results then | exit code | restored | exit code | computed again |",
        "|---|---|--:|--:|--:|--:|--:|"]  # fmt: skip


def runs(folder: Path, count: int, seed: int = 5) -> None:
    """Print the table's lines."""
    rng, data, contents = random.Random(seed), np.random.default_rng(seed), list[bytes]()
    inputs = Inputs(data.standard_normal((300, 200)), data.standard_normal((300, 100)), folder)
    np.save(inputs.a, inputs.A)
    np.save(inputs.b, inputs.B)
    for number in range(count):
        for path in (inputs.out, inputs.report):
            Path(path).unlink(missing_ok=True)
        sent = (signal.SIGUSR1, signal.SIGTERM, signal.SIGKILL)[number % 3]
        target = ("launcher", "master")[number // 3 % 2]
        job, moment = Job(inputs, *SLOW), rng.randrange(0, 61)
        done = job.interrupt(sent, target, moment)
        kept = job.tasks() if job.saved else []
        complete = Path(inputs.out).exists()  # faster than the signal, or than the launcher in passing it on
        after = job.run()
        check_complete(job, after)
        if not complete:
            again = set(kept) & computed(job.report)
            assert not again, again
            assert job.report["checkpoint"]["restored"] == len(kept)
        if not job.report["decoding"]["missing_blocks"]:  # the same 64 blocks, so the same C
            contents.append(Path(inputs.out).read_bytes())
        restored = "C was complete" if complete else len(kept)
        cells = (sent.name, target, moment, done.returncode, restored, after.returncode, 0)
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
    assert len(set(contents)) == 1
    print(f"{len(contents)} of {count} C were made of the same results, and are equal in every bit")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        print("\n".join([vendor(), *HEAD]))
        runs(Path(place), int(sys.argv[1]) if len(sys.argv) > 1 else 30)
