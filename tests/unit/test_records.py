"""The results file of a checkpoint: round trips, and every way in which a file can be torn, damaged or foreign."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cmm.core.task import Array, Assignment, Combination
from cmm.runtime.records import (
    CHECKSUM,
    MAGIC,
    PRELUDE,
    PRELUDE_BYTES,
    Form,
    Results,
    Saved,
    append,
    pack_header,
    unpack_header,
)

FORM = Form(bytes(range(16)), (3, 2), np.dtype(np.float64), (4, 5))
Content = tuple[Saved, list[Array]]


def saved(task: int, seed: int = 0, outputs: int = 1, form: Form = FORM) -> Content:
    """A task with random coefficients, and its blocks."""
    rng = np.random.default_rng([seed, task])

    def side(chunks: int) -> Combination:
        values = rng.standard_normal(chunks)
        return Combination.of(range(chunks), values + 1j * rng.random(chunks) if form.dtype.kind == "c" else values)

    a, b = side(form.chunks[0]), side(form.chunks[1])
    assignment = Assignment(task, (a,) * outputs, (b,), tuple(((q, 0),) for q in range(outputs)), None, form.chunks[1])
    blocks = [rng.standard_normal(form.block).astype(form.dtype) for _ in range(outputs)]
    return Saved(assignment, "repair", True), blocks


def write(path: Path, contents: list[Content], form: Form = FORM) -> list[int]:
    """The file; returns where each record begins, and where the last one ends."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    ends = [0]
    try:
        for what, blocks in contents:
            ends.append(append(fd, ends[-1], form, what, blocks))
    finally:
        os.close(fd)
    return ends


def read(path: Path, form: Form = FORM) -> tuple[list[Content], Results]:
    fd = os.open(path, os.O_RDONLY)
    try:
        results = Results(fd, form)
        return [(what, [block.copy() for block in blocks]) for what, blocks in results], results
    finally:
        os.close(fd)


def tasks(found: list[Content]) -> list[int]:
    return [what.assignment.task for what, _ in found]


def same(one: Content, other: Content) -> bool:
    headers = pack_header(one[0]) == pack_header(other[0])
    return headers and all(np.array_equal(x, y) for x, y in zip(one[1], other[1], strict=True))


# ---- round trips -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("outputs", [1, 4])
def test_what_is_read_is_what_was_written(tmp_path: Path, dtype: str, outputs: int) -> None:
    form = Form(FORM.plan, FORM.block, np.dtype(dtype), FORM.chunks)
    contents = [saved(task, outputs=outputs, form=form) for task in (3, 0, 11)]
    ends = write(tmp_path / "results", contents, form)
    found, results = read(tmp_path / "results", form)
    assert all(same(*pair) for pair in zip(found, contents, strict=True))
    assert results.end == ends[-1] == os.path.getsize(tmp_path / "results")
    assert results.report() == []


def test_blocks_without_elements(tmp_path: Path) -> None:
    form = Form(FORM.plan, (0, 2), FORM.dtype, FORM.chunks)
    write(tmp_path / "results", [saved(1, form=form)], form)
    found, _ = read(tmp_path / "results", form)
    assert tasks(found) == [1]
    assert found[0][1][0].shape == (0, 2)


finite = st.floats(allow_nan=False, allow_infinity=False).filter(lambda x: x != 0)
numbers = st.one_of(st.lists(finite, min_size=1, max_size=4),
                    st.lists(st.builds(complex, finite, finite), min_size=1, max_size=4))  # fmt: skip


@given(numbers, st.integers(0, 1 << 61), st.one_of(st.none(), st.integers(0, 15)), st.booleans())
def test_coefficients_keep_every_bit(values: list[complex], task: int, systematic: int | None, checked: bool) -> None:
    combination = Combination(np.arange(len(values)), np.array(values))
    assignment = Assignment(task, (combination,), (combination,), systematic=systematic, unknowns_b=4)
    found = unpack_header(pack_header(Saved(assignment, "fixed", checked)), (4, 4))
    assert found.assignment.a[0].key == combination.key
    assert found.assignment.a[0].values.dtype == combination.values.dtype
    assert (found.assignment.task, found.assignment.systematic, found.checked) == (task, systematic, checked)
    assert found.assignment.unknowns_b == 4


def test_a_record_beyond_what_one_call_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call moves 2 GiB at most, or as much as the system likes."""
    write_some, read_some = os.pwritev, os.preadv
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: write_some(fd, [b"".join(parts)[:37]], at))
    monkeypatch.setattr(os, "preadv", lambda fd, parts, at: read_some(fd, [parts[0][:5]], at))
    contents = [saved(task, outputs=3) for task in (2, 1)]
    write(tmp_path / "results", contents)
    found, _ = read(tmp_path / "results")
    assert all(same(*pair) for pair in zip(found, contents, strict=True))


# ---- damage ------------------------------------------------------------------------------------------------------


@pytest.fixture
def three(tmp_path: Path) -> tuple[Path, list[Content], list[int]]:
    contents = [saved(task) for task in range(3)]
    path = tmp_path / "results"
    return path, contents, write(path, contents)


def test_torn_anywhere_the_whole_records_are_used(three: Any) -> None:
    path, contents, ends = three
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        found, results = read(path)
        complete = sum(end <= size for end in ends[1:])
        assert tasks(found) == list(range(complete)), size
        assert all(same(*pair) for pair in zip(found, contents, strict=False))
        assert (results.end, results.torn) == (ends[complete], size - ends[complete])


def test_a_flipped_bit_costs_one_record(three: Any) -> None:
    path, contents, ends = three
    whole = path.read_bytes()
    for at in range(ends[1], ends[2]):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :])
        found, results = read(path)
        assert tasks(found) == [0, 2], at
        assert same(found[0], contents[0])
        assert same(found[1], contents[2])
        assert (results.damaged, results.foreign, results.torn) == (1, 0, 0)


def test_the_last_record_damaged_in_its_prelude_is_cut_off(three: Any) -> None:
    path, _, ends = three
    whole = bytearray(path.read_bytes())
    whole[ends[2] + 20] ^= 1
    path.write_bytes(whole)
    found, results = read(path)
    assert tasks(found) == [0, 1]
    assert results.end == ends[2]


@pytest.mark.parametrize("noise", [b"\0" * 5000, b"\xff" * 77, b"PK\x03\x04" * 30, MAGIC * 40], ids=repr)
@pytest.mark.parametrize("place", [0, 1, 3])
def test_foreign_bytes_are_passed_over(three: Any, noise: bytes, place: int) -> None:
    path, _, ends = three
    whole = path.read_bytes()
    path.write_bytes(whole[: ends[place]] + noise + whole[ends[place] :])
    found, results = read(path)
    assert tasks(found) == [0, 1, 2]
    assert results.torn == (len(noise) if place == 3 else 0)
    assert results.report()


def test_foreign_bytes_longer_than_what_is_looked_through_at_a_time(three: Any) -> None:
    path, _, ends = three
    whole = path.read_bytes()
    for length in ((1 << 20) - 3, (1 << 20) + 5):
        path.write_bytes(whole[: ends[1]] + b"\x89" * length + whole[ends[1] :])
        assert tasks(read(path)[0]) == [0, 1, 2]


def test_records_of_another_job_are_not_used(tmp_path: Path) -> None:
    other = Form(bytes(16), FORM.block, FORM.dtype, FORM.chunks)
    write(tmp_path / "a", [saved(0), saved(1)])
    write(tmp_path / "b", [saved(7, form=other)], other)
    (tmp_path / "results").write_bytes((tmp_path / "b").read_bytes() + (tmp_path / "a").read_bytes())
    found, results = read(tmp_path / "results")
    assert tasks(found) == [0, 1]
    assert results.foreign == 1


def test_a_size_is_not_believed(tmp_path: Path) -> None:
    """A prelude with right checksums whose sizes are not those of file and plan: nothing is allocated."""
    for header, blocks in ((1 << 31, 48), (40, 1 << 62), (0, 0), (40, 47)):
        prelude = PRELUDE.pack(MAGIC, FORM.plan, header, blocks, 0)
        raw = prelude + CHECKSUM.pack(zlib.crc32(prelude)) + bytes(100)
        (tmp_path / "results").write_bytes(raw)
        found, _ = read(tmp_path / "results")
        assert found == []


def forged(raw: bytes, blocks: bytes = bytes(48), form: Form = FORM) -> bytes:
    """A record with right checksums around any header."""
    prelude = PRELUDE.pack(MAGIC, form.plan, len(raw), len(blocks), zlib.crc32(blocks, zlib.crc32(raw)))
    return prelude + CHECKSUM.pack(zlib.crc32(prelude)) + raw + blocks


GOOD = pack_header(saved(5)[0])


@pytest.mark.parametrize("change", [
    (b'"task":5', b'"task":-1'), (b'"task":5', b'"task":true'), (b'"task":5', b'"task":5.0'),
    (b'"task":5', b'"task":1e400'), (b'"task":5', b'"task":' + b"9" * 30), (b"[[0,1,2,3],", b"[[0,1,3,2],"),
    (b"[[0,1,2,3],", b"[[0,1,2,4],"), (b"[[0,1,2,3],", b"[[0,1,2],"), (b"[[0,1,2,3],", b"[[-1,1,2,3],"),
    (b'"outputs":[[[0,0]]]', b'"outputs":[[[0,1]]]'), (b'"outputs":[[[0,0]]]', b'"outputs":[]'),
    (b'"outputs":[[[0,0]]]', b'"outputs":[[]]'), (b'"outputs":[[[0,0]]]', b'"outputs":7'),
    (b'"systematic":null', b'"systematic":20'), (b'"checked":true', b'"checked":1'), (b'"kind":', b'"kinds":'),
    (b"{", b"["), (b'"kind":"repair"', b'"kind":null'), (GOOD, b""), (GOOD, b"[" * 100000), (GOOD, b"\xff\xfe"),
])  # fmt: skip
def test_headers_out_of_range_are_damaged_records(tmp_path: Path, change: tuple[bytes, bytes]) -> None:
    assert change[0] in GOOD
    path = tmp_path / "results"
    path.write_bytes(forged(GOOD.replace(*change)))
    write_after = path.read_bytes() + forged(GOOD)
    assert read(path)[0] == []
    path.write_bytes(write_after)
    assert tasks(read(path)[0]) == [5]


@pytest.mark.parametrize("value", ["NaN", "Infinity", "0.0", "0", '"1"', "[1]", "[1,2,3]", "[NaN,1]", "null", "1e999"])
def test_coefficients_that_are_none(value: str) -> None:
    raw = ('{"task":1,"kind":"x","checked":true,"systematic":null,"outputs":[[[0,0]]],'
           f'"a":[[[0],[{value}]]],"b":[[[0],[1.0]]]}}')  # fmt: skip
    with pytest.raises(ValueError):
        unpack_header(raw.encode(), (4, 5))


@given(st.binary(max_size=400))
def test_any_bytes_are_no_header(raw: bytes) -> None:
    with pytest.raises(ValueError):
        unpack_header(raw, (4, 5))


@settings(max_examples=150)
@given(st.data())
def test_any_mutilation_leaves_only_true_records(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Cuts, insertions, repetitions and overwriting in any places: what is read was written, in every bit."""
    path = tmp_path_factory.mktemp("records") / "results"
    contents = [saved(task) for task in range(4)]
    write(path, contents)
    raw = path.read_bytes()
    for _ in range(data.draw(st.integers(1, 3))):
        start, stop = sorted(data.draw(st.tuples(st.integers(0, len(raw)), st.integers(0, len(raw)))))
        put = data.draw(st.one_of(st.binary(max_size=60), st.just(raw[start:stop] * 2)))
        raw = raw[:start] + put + raw[stop:]
    path.write_bytes(raw)
    found, results = read(path)
    assert all(same(item, contents[item[0].assignment.task]) for item in found)
    assert 0 <= results.end <= len(raw)


def test_a_prelude_has_the_size_it_says() -> None:
    assert len(forged(b"", b"")) == PRELUDE_BYTES
