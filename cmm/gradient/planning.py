"""The code of a job from its spec and the number of workers, and what it will cost each of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cmm.core.errors import UsageError
from cmm.gradient.data import DataSet
from cmm.gradient.encoding import (
    Encoding,
    cyclic,
    generalized_frc,
    heterogeneous_frc,
    imbalance,
    max_load,
    tandon_frc,
    total_load,
    uncoded,
)
from cmm.gradient.polynomial import groups_for, polynomial
from cmm.gradient.spec import GradientSpec

PARTS_PER_WORKER = 8  # of heterogeneous-frc, so that unequal shares can be met
MANY = 24  # workers whose loads are listed one by one


def stragglers_of(spec: GradientSpec, n: int) -> int:
    """s: as asked, 0 for uncoded, else a tenth of the workers and at least one where there are two."""
    if spec.code == "uncoded":
        if spec.stragglers:
            raise UsageError("--stragglers", "must be 0 with --code uncoded", spec.stragglers, "Use another code.")
        return 0
    if spec.stragglers is not None:
        return spec.stragglers
    return 0 if n == 1 else max(1, math.ceil(n / 10))


def make_encoding(spec: GradientSpec, n: int, rows: int, speeds: Sequence[float] | None = None) -> Encoding:
    """The encoding of a job on n >= 1 workers and so many rows of data. Raises UsageError.

    speeds : of heterogeneous-frc; None: all equal (before they are measured)
    """
    s, code = stragglers_of(spec, n), spec.code
    if code in ("polynomial", "cyclic"):
        generalized_frc(n, s, n)  # the same rules for n and s
        return _polynomial(spec, n, s, rows) if code == "polynomial" else _cyclic(spec, n, s, rows)
    if code == "heterogeneous-frc":
        given = spec.speed_list() if speeds is None else list(speeds)
        if given is not None and len(given) != n:
            raise UsageError("--speeds", f"must be one for each of the {n} workers", len(given),
                             "Leave them out to measure them.")  # fmt: skip
        return heterogeneous_frc(given or [1.0] * n, s, _parts(spec, PARTS_PER_WORKER * n, rows))
    k = _parts(spec, n, rows)
    if code == "uncoded":
        return uncoded(n, k)
    return tandon_frc(n, s, k) if code == "frc" else generalized_frc(n, s, k)


def _polynomial(spec: GradientSpec, n: int, s: int, rows: int) -> Encoding:
    made = polynomial(n, _parts(spec, groups_for(n, s), rows))
    if spec.stragglers is not None and made.stragglers < s:
        raise UsageError("--stragglers", f"must be at most {made.stragglers} with code polynomial, {n} workers and "
                         f"{made.k} groups", s, "Use fewer --parts, or leave them out.")  # fmt: skip
    return made


def _cyclic(spec: GradientSpec, n: int, s: int, rows: int) -> Encoding:
    if spec.parts not in (None, n):
        raise UsageError("--parts", f"must be the number of workers, {n}, with --code cyclic", spec.parts,
                         "Leave it out, or use generalized-frc.")  # fmt: skip
    if n > rows:
        raise UsageError("--code cyclic", f"needs a row of data for each of the {n} workers", f"{rows} rows",
                         "Start fewer ranks, or use generalized-frc.")  # fmt: skip
    return cyclic(n, s, spec.seed)


def _parts(spec: GradientSpec, default: int, rows: int) -> int:
    if spec.parts is not None and spec.parts > rows:
        raise UsageError("--parts", f"must be at most the number of rows, {rows}", spec.parts, "Use fewer parts.")
    return min(default, rows) if spec.parts is None else spec.parts


def describe(encoding: Encoding) -> dict[str, object]:
    """The report's `encoding`."""
    return {
        "code": encoding.name, "workers": encoding.n, "stragglers": encoding.stragglers, "parts": encoding.k,
        "total_load": total_load(encoding.matrix), "largest_load": max_load(encoding.matrix),
        "imbalance": imbalance(encoding.matrix, encoding.stragglers), "loads": list(encoding.loads),
        "classes": [[worker + 1 for worker in members] for members in encoding.classes],
    }  # fmt: skip


def worker_bytes(encoding: Encoding, data: DataSet) -> list[int]:
    """Bytes of data that every worker keeps."""
    if encoding.coded_data:
        return [-(-data.rows // encoding.k) * (data.features + 1) * 8] * encoding.n
    return [data.memory(load, encoding.k) for load in encoding.loads]


def plan_lines(encoding: Encoding, data: DataSet) -> list[str]:
    """What is stated before the run: loads and memory."""
    n, s, k, loads = encoding.n, encoding.stragglers, encoding.k, encoding.loads
    needed = worker_bytes(encoding, data)
    most = max(needed)
    lines = [f"{encoding.name}: {data.rows} rows in {k} parts on {n} workers, any {s} may straggle"]
    if encoding.coded_data:
        lines.append(f"loads: each worker one coded part, 1/{k} of the data; any {n - s} answers decode")
        lines.append("every worker reads all of the data once, to encode its part")
    else:
        each = " ".join(map(str, loads)) if n <= MANY else f"{min(loads)} to {max(loads)}"
        lines.append(f"loads: {each} parts; total {sum(loads)}, largest {max(loads)}, "
                     f"imbalance d_s {imbalance(encoding.matrix, s):g}")  # fmt: skip
    rank = needed.index(most) + 1
    share = 1 / k if encoding.coded_data else max(loads) / k
    lines.append(f"memory: at most {most / 1e6:.3g} MB of data on a worker (rank {rank}, {share:.0%} of the data); "
                 f"all workers {sum(needed) / 1e6:.3g} MB")  # fmt: skip
    return lines
