"""What /proc says about processes: memory, open files, shared memory that outlived its job. Standard library only."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

SHARED = Path("/dev/shm")


def resident(pid: int | str = "self") -> float:
    """Resident set in MB; 0 for a process that is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1e3
    return 0.0


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


class SharedMemory:
    """Notes, while it is entered, which files in shared memory some processes have mapped. `processes()` lists them."""

    def __init__(self, processes: Callable[[], Iterable[int]]) -> None:
        self._processes, self._seen = processes, set[Path]()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> SharedMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._stop.wait(0.2):
            for pid in self._processes():
                with contextlib.suppress(OSError):
                    names = {line.split(maxsplit=5)[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()}
                    self._seen |= {Path(name) for name in names if name.startswith(f"{SHARED}/")}

    def leftovers(self) -> list[str]:
        """Those that are still there."""
        return sorted(path.name for path in self._seen if path.exists())
