"""How much memory there is, asked before anything of a size named by a file is allocated.

A header of forty bytes can name a matrix of a petabyte, and a kilobyte of zip can unfold to a gigabyte. What has to be
held in memory is therefore compared with what this process can still get: the machine's free memory, the limit of its
control group (containers, Slurm) and the limits of the process.
"""

from __future__ import annotations

import resource
from pathlib import Path

from cmm.core.errors import DataError

_GROUPS = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 62


def available() -> int:
    """Bytes that this process can probably still allocate; very large where the system does not say."""
    limits = [_machine(), _group()]
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        soft, _ = resource.getrlimit(kind)
        if soft != resource.RLIM_INFINITY:
            limits.append(soft - _used())
    return max(0, min(limits))


def check_room(need: int, argument: str, what: str) -> None:
    """Raise DataError when `need` bytes do not fit. `what`: the file, and what of it has to be in memory."""
    have = available()
    if need > have:
        raise DataError(argument, f"must fit into memory, which has {have / 1e9:.3g} GB free",
                        f"{what}: {need / 1e9:.3g} GB",
                        "Use a node with more memory; .npy files of A and B need none.")  # fmt: skip


def _machine() -> int:
    for line in _lines(Path("/proc/meminfo")):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return _UNLIMITED


def _used() -> int:
    for line in _lines(Path("/proc/self/statm")):
        return int(line.split()[0]) * resource.getpagesize()
    return 0


def _group() -> int:
    """The tightest limit of this process's control groups, version 2 or 1, less what the group uses."""
    least = _UNLIMITED
    for line in _lines(Path("/proc/self/cgroup")):
        _, controllers, name = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = _GROUPS / "memory" if controllers else _GROUPS
        limit, used = (
            ("memory.limit_in_bytes", "memory.usage_in_bytes") if controllers else ("memory.max", "memory.current")
        )
        folder = root / name.lstrip("/")
        for place in (folder, *folder.parents):
            if root not in (place, *place.parents):
                break
            cap = _number(place / limit)
            if cap is not None:
                least = min(least, cap - (_number(place / used) or 0) + _reclaimable(place))
    return least


def _reclaimable(place: Path) -> int:
    """Cached file pages count as used by the group but make room when asked."""
    names = {"inactive_file", "total_inactive_file"}
    found = [line.split() for line in _lines(place / "memory.stat")]
    return max((int(words[1]) for words in found if len(words) == 2 and words[0] in names), default=0)


def _number(path: Path) -> int | None:
    text = "".join(_lines(path)[:1]).strip()
    return int(text) if text.isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
