"""How A, B and C are cut into chunks and blocks. Any s, r, t >= 0 works: chunk sizes differ by at most one.

A (s x r) is cut into p x m chunks, B (s x t) into p x n. Chunk `ia = k * m + i` of A is row part k, column part i;
chunk `jb = l * n + j` of B likewise. The unknown products are A_ia^T B_jb, numbered `ia * (p * n) + jb`; with p = 1
(the usual case) unknown `i * n + j` is simply block C_ij.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from cmm.core.errors import UsageError

MOST_BLOCKS = 10**7  # unknown products: each has an entry in the books of the master and of the decoder


@dataclass(frozen=True)
class Grid:
    """The split p x m x n: p of the shared dimension, m of A's columns, n of B's columns (all >= 1)."""

    m: int
    n: int
    p: int = 1

    def __post_init__(self) -> None:
        for name in ("m", "n", "p"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                rule = f"{name} must be a whole number of at least 1"
                raise UsageError("--grid", rule, value, "Use for example 4x4.")
        if self.unknowns > MOST_BLOCKS:
            raise UsageError("--grid", f"must have at most {MOST_BLOCKS} products of chunks", self, "Use fewer parts.")

    @classmethod
    def parse(cls, text: str) -> Grid:
        """Read `MxN` or `PxMxN`. Raises UsageError on anything else."""
        if not re.fullmatch(r"\d{1,9}(x\d{1,9}){1,2}", text.strip().lower()):
            raise UsageError("--grid", "must be MxN or PxMxN", repr(text), "Use for example 4x4, or 2x4x4.")
        numbers = [int(part) for part in text.strip().lower().split("x")]
        return cls(numbers[-2], numbers[-1], numbers[0] if len(numbers) == 3 else 1)

    def __str__(self) -> str:
        return f"{self.m}x{self.n}" if self.p == 1 else f"{self.p}x{self.m}x{self.n}"

    @property
    def K(self) -> int:  # noqa: N802 - the papers' symbol
        """Number of blocks of C, K = mn."""
        return self.m * self.n

    @property
    def chunks_a(self) -> int:
        return self.p * self.m

    @property
    def chunks_b(self) -> int:
        return self.p * self.n

    @property
    def unknowns(self) -> int:
        """Number of unknown products A_ia^T B_jb, p^2 mn (cross products included)."""
        return self.chunks_a * self.chunks_b

    def unknown(self, ia: int, jb: int) -> int:
        """Number of the product of A's chunk `ia` and B's chunk `jb`."""
        return ia * self.chunks_b + jb


def cut(length: int, parts: int) -> tuple[int, ...]:
    """Bounds (parts + 1 of them) that cut `length` into parts whose sizes differ by at most one, larger ones first."""
    size, larger = divmod(length, parts)
    return tuple(k * size + min(k, larger) for k in range(parts + 1))


@dataclass(frozen=True)
class Partition:
    """A grid laid over real sizes: which slice of A, B and C each chunk and block is.

    Chunks are sent and blocks returned padded with zeros to the largest size, so that all of them have one shape:
    coded chunks (chunk_rows x block_rows) and (chunk_rows x block_cols), results (block_rows x block_cols).
    """

    grid: Grid
    s: int
    r: int
    t: int

    def __post_init__(self) -> None:
        for name in ("s", "r", "t"):
            if getattr(self, name) < 0:
                raise UsageError(name, "must not be negative", getattr(self, name), "Pass the shape of a matrix.")
        for parts, size, what in ((self.grid.m, self.r, "columns of A"), (self.grid.n, self.t, "columns of B"),
                                  (self.grid.p, self.s, "rows of A and B")):  # fmt: skip
            if parts > max(size, 1):
                raise UsageError("--grid", f"must not cut {size} {what} into more than {max(size, 1)} parts",
                                 self.grid, "Choose a smaller grid, or another code.")  # fmt: skip

    @cached_property
    def bounds_s(self) -> tuple[int, ...]:
        return cut(self.s, self.grid.p)

    @cached_property
    def bounds_r(self) -> tuple[int, ...]:
        return cut(self.r, self.grid.m)

    @cached_property
    def bounds_t(self) -> tuple[int, ...]:
        return cut(self.t, self.grid.n)

    @property
    def chunk_rows(self) -> int:
        """Rows of every coded chunk: ceil(s / p)."""
        return -(-self.s // self.grid.p)

    @property
    def block_rows(self) -> int:
        """Rows of every (padded) result block: ceil(r / m)."""
        return -(-self.r // self.grid.m)

    @property
    def block_cols(self) -> int:
        """Columns of every (padded) result block: ceil(t / n)."""
        return -(-self.t // self.grid.n)

    def a_slices(self, ia: int) -> tuple[slice, slice]:
        """(rows, columns) of A that are its chunk `ia`."""
        k, i = divmod(ia, self.grid.m)
        return slice(*self.bounds_s[k : k + 2]), slice(*self.bounds_r[i : i + 2])

    def b_slices(self, jb: int) -> tuple[slice, slice]:
        """(rows, columns) of B that are its chunk `jb`."""
        k, j = divmod(jb, self.grid.n)
        return slice(*self.bounds_s[k : k + 2]), slice(*self.bounds_t[j : j + 2])

    def c_slices(self, i: int, j: int) -> tuple[slice, slice]:
        """(rows, columns) of C that are its block C_ij."""
        return slice(*self.bounds_r[i : i + 2]), slice(*self.bounds_t[j : j + 2])
