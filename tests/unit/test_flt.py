"""FLT and the published construction of FR: rows, parity, parameters, decoding."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from cmm.codes.flt import PAGE, FactoredLT
from cmm.codes.fr import FactoredRaptor
from cmm.codes.fr_paper import Paper
from cmm.core.errors import FailureKind, UsageError
from cmm.core.grid import Grid, Partition
from cmm.core.rng import generator
from cmm.linalg.blocks import BlockStore
from cmm.linalg.coded import CodedDecoder
from cmm.linalg.decoder import DecodingError
from cmm.linalg.rows import stack


def paper(
    grid: str = "10x10", tasks: int = 160, seed: int = 0, dispatch: str = "oneshot", **params: str
) -> FactoredRaptor:
    return FactoredRaptor(Grid.parse(grid), tasks, seed, dispatch, {"construction": "paper", **params})


def construction(code: FactoredRaptor) -> Paper:
    assert isinstance(code.construction, Paper)
    return code.construction


def flt(grid: str = "6x6", tasks: int = 240, seed: int = 0, **params: str) -> FactoredLT:
    return FactoredLT(Grid.parse(grid), tasks, seed, "oneshot", params)


# ---- rows ------------------------------------------------------------------------------------------------------


def test_a_task_does_not_depend_on_the_number_of_tasks() -> None:
    small, large = flt(tasks=36), flt(tasks=3 * PAGE)
    for index in (0, 35):
        for mine, other in zip(small.task(index).a + small.task(index).b,
                               large.task(index).a + large.task(index).b, strict=True):  # fmt: skip
            assert mine.key == other.key
    assert large.task(PAGE).a[0].key != large.task(0).a[0].key


def test_flt_rows_have_degrees_of_omega_and_the_law_asked() -> None:
    code = flt(omega="0.2x+0.5x^2+0.3x^6", coefficients="signs")
    for index in range(200):
        [row] = code.rows(code.task(index))
        assert len(row.indices) in (1, 2, 6)
        assert set(np.abs(row.values)) == {1.0}


def test_coded_rows_times_the_outer_code_are_the_rows_workers_see() -> None:
    """M (G_A ⊗ G_B) over the source blocks, exactly what Assignment's own a ⊗ b gives."""
    code = paper(outer="12x13", coefficients="gaussian")
    mine = construction(code)
    coded = mine.stream.matrix(np.arange(code.P))
    generated = coded @ np.kron(mine.outer.generator_a, mine.outer.generator_b)
    seen = stack([code.rows(code.task(index))[0] for index in range(code.P)], code.unknowns).toarray()
    limit = 8 * np.finfo(float).eps * (abs(coded) @ np.kron(abs(mine.outer.generator_a), abs(mine.outer.generator_b)))
    assert (np.abs(generated - seen) <= limit).all()
    for index in range(0, code.P, 17):
        row = mine.coded_row(index)
        assert np.array_equal(coded[[index]].toarray()[0, row.indices], row.values)


def test_parity_rows_are_scaled_so_that_coded_chunks_are_as_large_as_chunks() -> None:
    mine = construction(paper("80x80", 10000, outer="82x82", coefficients="gaussian"))
    for parity in (mine.outer.parity_a, mine.outer.parity_b):
        assert parity.shape == (2, 80)
        assert np.allclose((parity**2).sum(axis=1), 1, atol=0.6)


# ---- parameters ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "argument", "value"),
    [(lambda: paper(outer="9x12"), "outer", "9x12"), (lambda: paper(outer="twelve"), "outer", "twelve"),
     (lambda: paper("4x4", 40, omega="fr"), "omega", "66"), (lambda: flt(omega="r10"), "omega", "40"),
     (lambda: flt(pair_rule="widest"), "pair_rule", "widest"), (lambda: flt(omega="0.5y"), "omega", "0.5y"),
     (lambda: flt("2x3x3"), "grid", "2x3x3"),
     (lambda: FactoredRaptor(Grid(4, 4), 24, params={"outer": "6x6"}), "outer", "6x6")],
)  # fmt: skip
def test_what_cannot_work_is_refused_with_its_value(build: Any, argument: str, value: str) -> None:
    with pytest.raises(UsageError) as caught:
        build()
    assert argument in caught.value.argument
    assert value in str(caught.value)
    assert caught.value.remedy


def test_infeasible_degrees_are_dropped_only_when_asked_or_by_default() -> None:
    assert 66 not in flt("4x4").stream.omega.degrees
    assert 66 not in flt("4x4", omega="fr", infeasible="drop").stream.omega.degrees
    with pytest.raises(UsageError, match="66"):
        flt("4x4", infeasible="refuse")
    assert construction(paper(outer="12x12")).stream.omega.degrees[-1] == 66


def test_two_parities_a_side_by_default() -> None:
    outer = construction(paper("7x4", 60)).outer
    assert (outer.rows, outer.columns, outer.m, outer.n) == (9, 6, 7, 4)


# ---- decoding --------------------------------------------------------------------------------------------------


def feed(code: FactoredRaptor | FactoredLT, tasks: Iterable[int], partition: Partition, a: np.ndarray, b: np.ndarray,
         dtype: str) -> tuple[np.ndarray, Any]:  # fmt: skip
    """Workers' results into decoder and block store until decodable; returns C and the plan."""
    decoder, store = code.decoder(), BlockStore(partition, dtype)
    for task in tasks:
        assignment = code.task(task)
        [row] = code.rows(assignment)
        block = _combined(assignment.a[0], a, partition.bounds_r).T @ _combined(assignment.b[0], b, partition.bounds_t)
        store.put((task, 0), block.astype(dtype), row)
        decoder.add(task, [row])
        if decoder.decodable():
            break
    plan = decoder.plan()
    store.decode(plan)
    return store.C, plan


def _combined(combination: Any, matrix: np.ndarray, bounds: tuple[int, ...]) -> np.ndarray:
    width = int(np.diff(bounds).max())
    out = np.zeros((len(matrix), width), dtype=matrix.dtype)
    for index, value in zip(combination.indices, combination.values, strict=True):
        part = matrix[:, bounds[index] : bounds[index + 1]]
        out[:, : part.shape[1]] += value * part
    return out


@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32"])
@pytest.mark.parametrize("law", ["signs", "uniform", "gaussian"])
def test_paper_construction_decodes_uneven_blocks(law: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """33 x 47 cut into 5 x 4 with a 7 x 6 outer code, in random order; every phase verifies itself."""
    monkeypatch.setenv("CMM_VERIFY_DECODER", "1")
    rng = generator(3, law, dtype)
    a, b = rng.standard_normal((20, 33)), rng.standard_normal((20, 47))
    if dtype.startswith("complex"):
        a, b = a + 1j * rng.standard_normal(a.shape), b + 1j * rng.standard_normal(b.shape)
    code = paper("5x4", 80, 1, outer="7x6", coefficients=law)
    partition = Partition(code.grid, 20, 33, 47)
    c, plan = feed(code, rng.permutation(code.P).tolist(), partition, a, b, dtype)
    assert plan.method == "inactivation"
    assert plan.deficiency == 0
    unit = np.finfo(dtype).eps / np.finfo("float64").eps
    limit = max(100 * plan.probe_error, 1e-12) * unit * np.linalg.norm(a.T @ b)
    assert np.abs(c - a.T @ b).max() <= limit


@pytest.mark.parametrize("seed", range(5))
def test_a_hundred_blocks_decode_near_the_threshold(seed: int) -> None:
    """10 x 10 with outer 12 x 12 and P = 160, results in random order: decodable soon after K, right to 1e-11."""
    code = paper(outer="12x12", coefficients="signs", seed=seed)
    decoder, rng = code.decoder(), generator(seed, "arrival")
    for task in rng.permutation(code.P).tolist():
        decoder.add(task, code.rows(code.task(task)))
        if decoder.decodable():
            break
    assert decoder.results <= code.recovery_threshold.results + 4
    plan = decoder.plan()
    assert plan.inactivations <= 40
    blocks = rng.standard_normal((code.unknowns, 3))
    known = blocks.copy()
    known[plan.missing] = 0
    solved = plan.solve(known, stack(list(plan.rows), code.unknowns) @ blocks)
    assert np.abs(solved - blocks[plan.missing]).max() <= 1e-11


def test_repairs_of_the_paper_construction_are_more_of_the_stream() -> None:
    code = paper("5x4", 30, dispatch="pull", coefficients="signs")
    assert code.repairs
    decoder = code.decoder()
    index = 0
    while not decoder.decodable():
        lost = index % 3 == 0
        assignment = code.task(index) if index < code.P else code.repair(decoder.outstanding(), index)
        if not lost:
            decoder.add(index, code.rows(assignment))
        index += 1
        assert index < 3 * code.P
    assert decoder.plan().deficiency == 0


def test_targeted_repairs_of_flt_reach_the_blocks_nothing_met() -> None:
    code = FactoredLT(Grid(6, 6), 36, 4, "pull", {})
    decoder = code.decoder()
    for task in range(code.P):
        decoder.add(task, code.rows(code.task(task)))
    index = code.P
    while not decoder.decodable():
        decoder.add(index, code.rows(code.repair(decoder.outstanding(), index)))
        index += 1
        assert index < 3 * code.P


def test_too_few_results_are_refused_with_what_is_missing() -> None:
    code = paper("5x4", 80)
    decoder = code.decoder()
    assert isinstance(decoder, CodedDecoder)
    for task in range(18):
        decoder.add(task, code.rows(code.task(task)))
    assert not decoder.decodable()
    with pytest.raises(DecodingError) as caught:
        decoder.plan()
    assert caught.value.kind is FailureKind.INCOMPLETE
    assert caught.value.needed >= 2


def test_an_uncovered_block_is_noticed_without_a_factorisation() -> None:
    code = flt(omega="0.5x+0.5x^2")
    decoder = code.decoder()
    seen: set[int] = set()
    for task in range(code.P):
        [row] = code.rows(code.task(task))
        if 35 not in row.indices:
            seen.update(row.indices.tolist())
            decoder.add(task, [row])
    assert seen == set(range(35))
    assert not decoder.decodable()
    with pytest.raises(DecodingError, match="1 blocks are met by no result"):
        decoder.plan()
    assert decoder.wanted()[0] == 35
