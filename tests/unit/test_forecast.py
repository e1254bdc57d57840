"""The memory forecast against sums made by hand, and against the budget of the design."""

from __future__ import annotations

import pytest

from cmm.codes.registry import code_class
from cmm.core.grid import Grid, Partition
from cmm.engine.forecast import Buffers, MemoryForecast, TaskShape, memory_forecast, size_text


def forecast(name: str = "fr", grid: str = "4x4", tasks: int = 24, sizes: tuple[int, int, int] = (3001, 1999, 1501),
             workers: int = 5, dispatch: str = "pull", **options: object) -> MemoryForecast:  # fmt: skip
    shape = Grid.parse(grid)
    code = code_class(name)(shape, tasks, 0, dispatch)
    options = {"itemsize": 8, "input_itemsizes": (8, 8), **options}
    return memory_forecast(Partition(shape, *sizes), code, workers, **options)  # type: ignore[arg-type]


def test_the_parts_by_hand() -> None:
    f = forecast()
    a, b, block = 3001 * 500 * 8, 3001 * 376 * 8, 500 * 376 * 8
    assert (f.a, f.b, f.c) == (3001 * 1999 * 8, 3001 * 1501 * 8, 1999 * 1501 * 8)
    assert f.coded == 4 * (a + b)
    assert f.receiving == 4 * block
    assert f.surplus == 0  # any K results decode
    assert f.decoding == 8 * block
    assert f.checks == 8 * (3001 * 4 + 16 * 500 + 2 * 4 * 500)
    assert f.credit == 2 * (a + b)
    assert f.worker == 2 * (a + b + block)
    assert f.beyond == f.coded + f.receiving + f.decoding + f.checks
    assert f.master(2) - f.master() == 2 * f.credit
    assert f.master(99) == f.master(5)


def test_within_the_budget_of_the_design_for_systematic_codes() -> None:
    """Beyond A, B, C: 8 task buffers, one round's coded chunks, the surplus blocks, and the decoder's slices."""
    for name in ("fr", "rkrp", "replication"):
        f = forecast(name, sizes=(4096, 4096, 4096), tasks=32)
        task = 4096 * 1024 * 8 * 2 + 1024 * 1024 * 8
        assert f.coded + f.receiving <= 8 * task
        assert f.surplus == (0 if name != "replication" else 15 * 1024 * 1024 * 8)  # worst case of copies


def test_results_beyond_k_and_results_of_a_split_shared_dimension_wait_outside_c() -> None:
    f = forecast("fr", "20x20", 480, dispatch="oneshot")
    code = code_class("fr")(Grid(20, 20), 480, 0, "oneshot")
    block = 100 * 76 * 8
    assert f.surplus == (code.recovery_threshold.results - 400) * block
    split = forecast("uncoded", "3x2x2", 12)
    assert split.surplus == 12 * 1000 * 751 * 8


def test_options_change_what_they_should() -> None:
    base = forecast()
    assert forecast(verify="final").checks == forecast(verify="none").checks == 0
    assert forecast(itemsize=4).c * 2 == base.c
    assert forecast(input_itemsizes=(4, 8)).a * 2 == base.a
    assert forecast(wire_itemsize=16).coded == 2 * base.coded
    assert forecast(buffers=Buffers(window=3)).credit * 2 == 3 * base.credit
    many = forecast(task=TaskShape(2, 2, 4))
    assert many.receiving == 4 * base.receiving
    assert many.credit == 2 * base.credit
    alone = forecast(workers=0)
    assert alone.worker == 0
    assert alone.receiving * 4 == base.receiving
    assert alone.master(3) == alone.master()


@pytest.mark.parametrize("sizes", [(0, 3, 2), (3, 0, 2), (3, 2, 0), (1, 1, 1)])
def test_empty_matrices_need_next_to_nothing(sizes: tuple[int, int, int]) -> None:
    f = forecast("uncoded", "1x1", 1, sizes)
    assert f.decoding == Buffers().workspace
    assert f.beyond - f.decoding < 1000


def test_the_lines_name_every_part_once() -> None:
    text = "\n".join(forecast().lines())
    for part in ("master", "A 48 MB", "B 36 MB", "C 24 MB", "coded chunks 84.1 MB", "arriving results", "decoding",
                 "checks", "for every worker that stops answering", "worker     "):  # fmt: skip
        assert text.count(part) == 1, part
    assert "waiting results" not in text  # there are none
    assert len(forecast(workers=0).lines()) == 1


def test_sizes_as_text() -> None:
    assert [size_text(x) for x in (0, 999, 1000, 999_999, 2.5e6, 1e9, 3e15)] == [
        "0 B", "999 B", "1 kB", "1 MB", "2.5 MB", "1 GB", "3e+03 TB"]  # fmt: skip
