"""Jobs of every kind, drawn at random: `python -m benchmarks.soak_kinds FOLDER JOBS SECONDS SEED` on the soak's ranks.

Code, grid, dispatch, shape, dtypes, op, memory layout, sparsity, scale of columns and rows, zeros, NaN and infinity,
and liars. What is right is computed from the same numbers without cmm: exactly for integers; for the others in double
precision from columns of norm one, since that is what the tolerance is relative to.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from cmm.core.errors import InaccurateError, UnverifiedError

Array = npt.NDArray[Any]
Rng = np.random.Generator

REAL = [("fr", "4x4"), ("fr", "6x5"), ("fr", "1x7"), ("rkrp", "3x4"), ("replication", "4x3"),
        ("uncoded", "5x3"), ("uncoded", "2x2x3"), ("mds", "6x1"), ("mds", "4x3"), ("polynomial", "3x2"),
        ("polynomial", "2x2"), ("matdot", "4x1x1"), ("entangled", "2x2x2"), ("product", "4x4"), ("product", "2x6"),
        ("orthopoly", "4x3"), ("orthomatdot", "5x1x1"), ("rotation", "4x4"), ("rotation", "2x6"), ("lt", "16x1"),
        ("sparse", "3x3"), ("flt", "4x5"), ("fractional-repetition", "3x4"),
        ("fractional-repetition", "7x1x1")]  # fmt: skip
EXACT = [("fr", "4x4"), ("rkrp", "3x4"), ("replication", "4x3"), ("uncoded", "2x2x3"), ("mds", "4x3"),
         ("sparse", "3x3"), ("fractional-repetition", "3x4"), ("lt", "12x1")]  # fmt: skip
PARAMS = {"fr": {"construction": "paper"}, "polynomial": {"nodes": "circle"}, "matdot": {"nodes": "circle"},
          "rkrp": {"systematic": "no"}, "mds": {"coefficients": "gaussian"}, "product": {"component": "orthopoly"},
          "lt": {"rows": "1"}}  # fmt: skip
FLOATS = ["f4", "f8", "c8", "c16", ">f8", ">f4", "f2"]
INTEGERS = ["i1", "u1", "i2", "i4", "i8", "?", ">i4", "u4"]
DEFAULTS = {4: 1e-3, 8: 1e-9}  # the default tolerance by the bytes of a real number


# ---- matrices ------------------------------------------------------------------------------------------------------


def normal(rng: Rng, shape: tuple[int, int]) -> Array:
    return rng.normal(size=shape)


def one_sign(rng: Rng, shape: tuple[int, int]) -> Array:
    return rng.uniform(0.5, 1.5, size=shape)


def constant(rng: Rng, shape: tuple[int, int]) -> Array:
    return np.broadcast_to(rng.normal(size=shape[1]), shape).copy()


def scaled_columns(rng: Rng, shape: tuple[int, int]) -> Array:
    return rng.normal(size=shape) * 10.0 ** rng.uniform(-12, 12, size=shape[1])


def scaled_rows(rng: Rng, shape: tuple[int, int]) -> Array:
    return rng.normal(size=shape) * 10.0 ** rng.uniform(-6, 6, size=(shape[0], 1))


def holes(rng: Rng, shape: tuple[int, int]) -> Array:
    """Zero columns and zero rows."""
    return rng.normal(size=shape) * (rng.random(shape[1]) < 0.7) * (rng.random((shape[0], 1)) < 0.7)


def zero(rng: Rng, shape: tuple[int, int]) -> Array:
    return np.zeros(shape)


def spoiled(rng: Rng, shape: tuple[int, int]) -> Array:
    """NaN and infinities in a few places."""
    made = rng.normal(size=shape)
    for value in rng.choice([np.nan, np.inf, -np.inf], size=rng.integers(1, 4)):
        made[rng.integers(shape[0]), rng.integers(shape[1])] = value
    return made


LOOKS: list[Callable[[Rng, tuple[int, int]], Array]] = [normal, normal, one_sign, constant, scaled_columns, scaled_rows,
                                                        holes, zero, spoiled]  # fmt: skip


def floats(rng: Rng, shape: tuple[int, int], dtype: str) -> Array:
    """Of any look; halves have too short a range for the scaled ones."""
    looks = LOOKS[:4] if dtype == "f2" else LOOKS
    made = looks[rng.integers(len(looks))](rng, shape)
    if dtype[0] == "c":
        made = made + 1j * looks[rng.integers(len(looks) - 1)](rng, shape)
    return made.astype(dtype)


def integers(rng: Rng, shape: tuple[int, int], dtype: str) -> Array:
    top = 2 if dtype == "?" else 100
    low = 0 if np.dtype(dtype).kind in "ub" else -top
    return rng.integers(low, top, size=shape).astype(dtype)


def laid_out(rng: Rng, matrix: Array) -> Any:
    """The same numbers in another layout of memory, or sparse."""
    kind = rng.integers(7)
    if kind == 1:
        return np.asfortranarray(matrix)
    if kind == 2:
        return np.repeat(np.repeat(matrix, 2, axis=0), 3, axis=1)[::2, ::3]
    if kind == 3:
        return matrix[::-1, ::-1].copy()[::-1, ::-1]
    if kind == 4:
        matrix.setflags(write=False)
    if kind == 5 and matrix.dtype.kind in "fc" and matrix.dtype.itemsize > 2 and np.isfinite(matrix).all():
        kept = matrix * (rng.random(matrix.shape) < 0.2)
        return [scipy.sparse.csr_array, scipy.sparse.csc_array, scipy.sparse.coo_array][rng.integers(3)](
            kept.astype(matrix.dtype.newbyteorder("="))
        )
    return matrix


# ---- jobs ----------------------------------------------------------------------------------------------------------


def draw(number: int, seed: int) -> tuple[Any, Any, dict[str, Any]]:
    """Job `number`: A, B and the arguments of cmm.matmul."""
    rng = np.random.default_rng([seed, number])
    exact = rng.random() < 0.25
    codes, dtypes = (EXACT, INTEGERS) if exact else (REAL, FLOATS)
    code, grid = codes[rng.integers(len(codes))]
    long = rng.random() < 0.2
    shape = (int(rng.integers(8, 3000 if long else 300)), int(rng.integers(16, 200)), int(rng.integers(16, 200)))
    kinds = [dtypes[rng.integers(len(dtypes))] for _ in "AB"]
    if rng.random() < 0.7:
        kinds[1] = kinds[0]
    made = integers if exact else floats
    A, B = (laid_out(rng, made(rng, (shape[0], n), kind)) for n, kind in zip(shape[1:], kinds, strict=True))
    given: dict[str, Any] = {"code": code, "grid": grid, "seed": number, "op": "TH"[rng.integers(2)]}
    if code in ("fr", "rkrp", "uncoded", "replication", "flt") and rng.random() < 0.3:
        given["dispatch"] = "oneshot"
    if code in PARAMS and not exact and rng.random() < 0.3:
        given["params"] = PARAMS[code]
    if rng.random() < 0.15:
        given["verify"] = "final"
    return A, B, given


def lies(number: int, seed: int) -> list[str]:
    """Faults of the workers, the same on all ranks. One honest worker is left."""
    rng = np.random.default_rng([seed, number, 1])
    faults = [f"corrupt:{rng.integers(1, 4)}:{rng.choice([0.05, 0.3, 1])}"] * (rng.random() < 0.4)
    return faults + [str(rng.choice(["slow:2:3", "sleep:3:0.01", "exp:1-4:0.002"]))] * (rng.random() < 0.2)


def wrong(C: Array, A: Any, B: Any, op: str) -> float:
    """The error relative to what may be: above 1 is wrong. Infinite where C has not the numbers that it has to have."""
    A, B = (np.asarray(m.toarray() if scipy.sparse.issparse(m) else m) for m in (A, B))
    if A.dtype.kind in "iub" and B.dtype.kind in "iub":
        return 0.0 if np.array_equal(C, A.astype(np.int64).T @ B.astype(np.int64)) else np.inf
    working = np.result_type(A, B, np.float32)
    wide = np.result_type(working, np.float64)
    A, B = (m.astype(working).astype(wide) for m in (A, B))
    A = A.conj() if op == "H" else A
    (a, A), (b, B) = _normed(A), _normed(B)
    with np.errstate(all="ignore"):
        right = A.T @ B
        off = np.abs(C / a[:, None] / b - right)
    whole = np.isfinite(right)
    if working.kind == "f" and not np.array_equal(C[~whole], right[~whole], equal_nan=True):
        return np.inf
    if not np.array_equal(whole, np.isfinite(C)):
        return np.inf
    limit = DEFAULTS[4 if working in (np.float32, np.complex64) else 8]
    return float(np.max(off[whole], initial=0.0)) / limit


def _normed(matrix: Array) -> tuple[Array, Array]:
    """Norms of the columns (1 for zero ones and those that are not finite), and the matrix divided by them."""
    with np.errstate(invalid="ignore"):
        norms = np.linalg.norm(matrix, axis=0)
        norms[(norms == 0) | ~np.isfinite(norms)] = 1
        return norms, matrix / norms


def inside(folder: Path, jobs: int, seconds: float, seed: int) -> None:
    """On every rank: the jobs; rank 0 writes a line for each."""
    from mpi4py import MPI

    import cmm

    comm, until = MPI.COMM_WORLD.Dup(), time.monotonic() + seconds
    if comm.rank:
        for number in range(jobs):
            with contextlib.suppress(cmm.CmmError):  # rank 0 tells
                cmm.matmul(comm=comm, inject=lies(number, seed), seed=number)
        return
    with (folder / "kinds0").open("w", buffering=1) as out:
        for number in range(jobs):
            A, B, given = draw(number, seed)
            if time.monotonic() > until:  # the ranks have to make as many calls
                A, B, given = A[:1, :1], B[:1, :1], {"code": "uncoded", "grid": "1x1", "seed": number}
            print(json.dumps(_lead(cmm, comm, A, B, given, lies(number, seed))), file=out)


def _lead(cmm: Any, comm: Any, A: Any, B: Any, given: dict[str, Any], inject: list[str]) -> dict[str, Any]:
    said = f"{given}, {inject}, A {A.dtype} {A.shape}, B {B.dtype} {B.shape}"
    try:
        C, report = cmm.matmul(A, B, comm, inject=inject, **given)
    except (UnverifiedError, InaccurateError) as error:
        caught = given.get("verify") == "final" and any(fault.startswith("corrupt") for fault in inject)
        return {"caught": said} if caught else {"failed": f"{said}: {error}"}
    except cmm.CmmError as error:
        return {"failed": f"{said}: {type(error).__name__}: {error}"}
    share = wrong(C, A, B, given.get("op", "T"))
    if given.get("verify") == "final":  # which tells what it would not have seen, up to how far norms differ
        share /= max(1.0, 4 * report["verification"]["smallest_detected"] / report["decoding"]["tolerance"])
    return {"share": share, "kind": said, "counts": report["counts"],
            "workers": [{"status": worker["status"]} for worker in report["workers"]]}  # fmt: skip


if __name__ == "__main__":
    inside(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
