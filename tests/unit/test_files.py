"""Matrices from files and to files: every kind of .npy, every refusal, atomic output."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.lib import format as npy_format

from cmm.core.errors import DataError, ExitCode, InputMissingError, OutputError, UsageError
from cmm.matrices import files
from cmm.matrices.files import (
    as_source,
    check_exact,
    check_output,
    column_block,
    open_matrix,
    working_dtype,
    write_atomic,
    write_matrix,
)

DTYPES = ["<f4", ">f4", "<f8", ">f8", "<c8", ">c16", "<i2", ">i8", "u1", "?", "<f2"]


def save(path: Path, array: np.ndarray, version: tuple[int, int] | None = None) -> Path:
    with path.open("wb") as file:
        npy_format.write_array(file, array, version=version, allow_pickle=True)
    return path


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_reads_every_kind_memory_mapped(tmp_path, version, order, dtype):
    array = np.asarray(np.arange(35).reshape(7, 5) % 11, order=order).astype(dtype, order="K")
    source = open_matrix(save(tmp_path / "a.npy", array, version))
    assert isinstance(source.array, np.memmap)
    assert source.shape == (7, 5)
    assert source.dtype == np.dtype(dtype)
    assert source.bytes == array.nbytes
    assert np.array_equal(source.array, array)
    assert not source.array.flags.writeable


@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0), (0, 0), (6,), (1, 1)])
def test_empty_matrices_and_vectors(tmp_path, shape):
    array = np.ones(shape)
    source = open_matrix(save(tmp_path / "v.npy", array))
    assert source.shape == (shape if len(shape) == 2 else (shape[0], 1))
    assert np.array_equal(source.array, array.reshape(source.shape))


def truncated(path: Path) -> Path:
    save(path, np.ones((40, 40)))
    os.truncate(path, 5000)
    return path


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def half_header(path: Path) -> Path:
    save(path, np.ones(3))
    os.truncate(path, 40)
    return path


BAD_CONTENT = [
    (truncated, "truncated"),
    (half_header, "valid .npy header"),
    (lambda p: written(p, b""), "empty file"),
    (lambda p: written(p, b"PK\x03\x04 not npy at all"), "no .npy signature"),
    (lambda p: written(p, b"\x93NUMPY\x09\x00rest of it"), "version"),
    (lambda p: save(p, np.array([[1, None]], dtype=object)), "Python objects"),
    (lambda p: save(p, np.zeros((2, 2), dtype=[("x", "f8")])), "must hold numbers"),
    (lambda p: save(p, np.array([["a", "b"]])), "must hold numbers"),
    (lambda p: save(p, np.zeros((2, 2), dtype="M8[s]")), "must hold numbers"),
    (lambda p: save(p, np.zeros((2, 2, 2))), "2 or 1 dimensions"),
    (lambda p: save(p, np.array(3.0)), "2 or 1 dimensions"),
]


@pytest.mark.parametrize(("make", "words"), BAD_CONTENT, ids=[words for _, words in BAD_CONTENT])
def test_bad_content_is_one_clear_refusal(tmp_path, make, words):
    path = make(tmp_path / "bad.npy")
    with pytest.raises(DataError) as caught:
        open_matrix(path, "--b")
    text = str(caught.value)
    assert caught.value.exit_code is ExitCode.DATA
    assert words in text
    assert text.startswith("--b: ")
    assert "\n" not in text


def test_negative_shape_in_the_header_is_refused(tmp_path):
    path = tmp_path / "n.npy"
    with path.open("wb") as file:
        npy_format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (-2, -3)})
        file.write(bytes(48))
    with pytest.raises(DataError, match="must have a valid"):
        open_matrix(path)


@pytest.mark.parametrize("shape", ["(True, 2)", "(2, False)", "(2, True, 1)"])
def test_sides_that_are_no_numbers_are_refused(tmp_path, shape):
    """Found by fuzzing: NumPy takes True for a size, and the memory map does not."""
    header = f"{{'descr': '<f8', 'fortran_order': True, 'shape': {shape}, }}".ljust(117) + "\n"
    path = written(
        tmp_path / "n.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + bytes(64)
    )
    with pytest.raises(DataError, match="must have a valid"):
        open_matrix(path)


@pytest.mark.parametrize("name", ["missing.npy", "a.npy/below.npy", "folder", "x\0y.npy"])
def test_inputs_that_cannot_be_opened(tmp_path, name):
    save(tmp_path / "a.npy", np.ones(2))
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputMissingError) as caught:
        open_matrix(tmp_path / name)
    assert caught.value.exit_code is ExitCode.NO_INPUT
    assert str(caught.value).startswith("--a: ")


def test_a_pipe_is_refused_without_blocking(tmp_path):
    os.mkfifo(tmp_path / "pipe.npy")
    with pytest.raises(InputMissingError, match="regular file"):
        open_matrix(tmp_path / "pipe.npy")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_permission_denied(tmp_path):
    path = save(tmp_path / "a.npy", np.ones(2))
    path.chmod(0)
    with pytest.raises(InputMissingError, match="permission"):
        open_matrix(path)


def test_unknown_suffix_lists_the_formats(tmp_path):
    path = written(tmp_path / "a.xyz", b"1 2 3")
    with pytest.raises(DataError, match=r"\.npy"):
        open_matrix(path)
    with pytest.raises(UsageError, match=r"\.npy"):
        check_output(tmp_path / "c.xyz")
    check_output(tmp_path / "c.xyz", matrix=False)


def test_masked_arrays_are_refused():
    with pytest.raises(DataError, match="masked"):
        as_source(np.ma.masked_array([1.0, 2.0], [True, False]), "a")


# ---- output ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["<f4", "<f8", "<c8", "<c16", "<i8"])
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 1), (5, 4)])
@pytest.mark.parametrize("layout", ["C", "F", "strided"])
def test_written_matrices_read_back(tmp_path, dtype, shape, layout):
    array = np.arange(shape[0] * shape[1]).reshape(shape).astype(dtype)
    array = (
        np.repeat(np.repeat(array, 2, 0), 2, 1)[::2, ::2] if layout == "strided" else np.asarray(array, order=layout)
    )
    write_matrix(tmp_path / "c.npy", array)
    assert np.array_equal(np.load(tmp_path / "c.npy"), array)
    assert [path.name for path in tmp_path.iterdir()] == ["c.npy"]


def test_written_by_slabs_is_the_whole_matrix(tmp_path, monkeypatch):
    monkeypatch.setattr("cmm.matrices.npy._SLAB", 1000)
    array = np.random.default_rng(1).normal(size=(123, 17))
    write_matrix(tmp_path / "c.npy", array)
    assert np.array_equal(np.load(tmp_path / "c.npy"), array)


def test_existing_output_is_kept_without_overwrite(tmp_path):
    path = save(tmp_path / "c.npy", np.ones(2))
    with pytest.raises(OutputError, match="--overwrite") as caught:
        check_output(path)
    assert caught.value.exit_code is ExitCode.CANNOT_WRITE
    check_output(path, overwrite=True)
    assert np.array_equal(np.load(path), np.ones(2))


def test_an_input_is_never_an_output(tmp_path):
    path = save(tmp_path / "a.npy", np.ones(2))
    (tmp_path / "link.npy").symlink_to(path)
    os.link(path, tmp_path / "hard.npy")
    for name in ("a.npy", "link.npy", "hard.npy"):
        with pytest.raises(OutputError, match="must not be an input"):
            check_output(tmp_path / name, inputs=[path], overwrite=True)


def test_a_name_too_long_for_the_file_system_is_refused(tmp_path):
    for argument, name in (("--out", "n" * 300 + ".npy"), ("--report", "n" * 245 + ".npy.report.json")):
        with pytest.raises(OutputError, match=f"{argument}: must be a name that the file system takes"):
            files.check_output(tmp_path / name, argument=argument, matrix=argument == "--out")


def test_outputs_that_cannot_be_written(tmp_path):
    (tmp_path / "folder.npy").mkdir()
    with pytest.raises(OutputError, match="directory"):
        check_output(tmp_path / "folder.npy", overwrite=True)
    with pytest.raises(OutputError, match="existing directory"):
        check_output(tmp_path / "nowhere" / "c.npy")
    with pytest.raises(OutputError, match="can be written"):
        check_output("/proc/c.npy")
    with pytest.raises(OutputError, match="bytes on its file system"):
        check_output(tmp_path / "c.npy", size=1 << 62)
    with pytest.raises(OutputError, match="regular file"):
        check_output("/dev/null", matrix=False, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.npy"]


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path):
    """The limit on file size stands for a full disk: write() fails half-way with an error number."""
    path = save(tmp_path / "c.npy", np.ones(3))
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, old[1]))
    try:
        with pytest.raises(OutputError, match=os.strerror(27)):
            write_matrix(path, np.zeros((1000, 1000)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)
    assert np.array_equal(np.load(path), np.ones(3))
    assert [entry.name for entry in tmp_path.iterdir()] == ["c.npy"]


def test_an_interrupt_leaves_nothing(tmp_path, monkeypatch):
    def stop(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "fsync", stop)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(tmp_path / "report.json", "{}")
    assert list(tmp_path.iterdir()) == []


def test_write_atomic_replaces_and_follows_links(tmp_path):
    target = tmp_path / "real.json"
    (tmp_path / "link.json").symlink_to(target)
    write_atomic(tmp_path / "link.json", "Ω")
    write_atomic(target, b"second")
    assert target.read_bytes() == b"second"
    assert (tmp_path / "link.json").is_symlink()
    umask = os.umask(0)
    os.umask(umask)
    assert target.stat().st_mode & 0o777 == 0o666 & ~umask


# ---- dtypes and blocks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("a", "b", "expected"), [
    ("f4", "f4", "f4"), ("f4", "f8", "f8"), (">f8", ">f8", "f8"), ("f4", "c8", "c8"), ("f8", "c8", "c16"),
    ("c16", "f4", "c16"), ("f2", "f2", "f4"), ("f2", "f8", "f8"), ("i2", "i2", "f8"), ("?", "f4", "f8"),
    ("u8", "c8", "c16"),
])  # fmt: skip
def test_working_dtype(a, b, expected):
    result = working_dtype(np.dtype(a), np.dtype(b))
    assert result == np.dtype(expected)
    assert result.isnative


@pytest.mark.parametrize("dtype", ["longdouble", "clongdouble"])
def test_long_double_is_refused(dtype):
    with pytest.raises(DataError, match="float64 or complex128"):
        working_dtype(np.dtype("f8"), np.dtype(dtype))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 1), (10, 1), (1, 10), (100, 7), (9000, 3)])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("limit", [1, 300, 1 << 20])
def test_tiles_cover_the_matrix_once(shape, order, limit):
    seen = np.zeros(shape, dtype=np.int64, order=order)
    for rows, cols in files.tiles(seen, limit if seen.size < 1000 else max(limit, 300)):
        seen[rows, cols] += 1
    assert (seen == 1).all()


@pytest.mark.parametrize("value", [2**53 + 1, -(2**53) - 1, -(2**63)])
def test_integers_that_float64_cannot_hold_name_their_column(value, monkeypatch):
    monkeypatch.setattr(files.tiles, "__defaults__", (256,))
    array = np.zeros((100, 7), dtype=np.int64)
    array[3, 1], array[4, 1] = 2**53, -(2**53)
    check_exact(as_source(array, "--a"))
    array[61, 4] = value
    with pytest.raises(DataError, match="column 4"):
        check_exact(as_source(array, "--a"))


def test_unsigned_integers_are_checked():
    with pytest.raises(DataError, match="column 0"):
        check_exact(as_source(np.array([[2**64 - 1]], dtype=np.uint64), "--a"))


KINDS = st.sampled_from(["<f4", ">f8", "<c8", ">c16", "<i4", "?", "<f2"])
SHAPES = st.tuples(st.integers(1, 9), st.integers(1, 9))


@pytest.mark.parametrize("dtype", ["c8", "c16"])
@pytest.mark.parametrize("total", [*range(1, 10), 16])
def test_conjugates_in_a_wider_block(dtype: str, total: int) -> None:
    """Chunks narrower than the coded ones. np.negative in place was wrong for one column of two (complex64)."""
    rng = np.random.default_rng(total)
    A = (rng.standard_normal((33, 20)) + 1j * rng.standard_normal((33, 20))).astype(dtype)
    for width in range(1, total + 1):
        out = np.full((35, total), np.nan, dtype)
        column_block(A, slice(0, 33), slice(2, 2 + width), np.dtype(dtype), conjugate=True, out=out)
        expected = np.zeros_like(out)
        expected[:33, :width] = A[:, 2 : 2 + width].conj()
        assert np.array_equal(out, expected)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(array=hnp.arrays(KINDS, SHAPES, elements=st.integers(0, 1)), fortran=st.booleans(),
       step=st.sampled_from([1, 2, -1]), pad=st.integers(0, 2), conjugate=st.booleans())  # fmt: skip
def test_column_block_is_the_block_whatever_the_strides(array, fortran, step, pad, conjugate):
    view = np.asarray(array, order="F" if fortran else "C")[::step, ::step]
    dtype = working_dtype(array.dtype)
    if dtype.kind == "c":
        view = view + 1j * np.arange(view.size).reshape(view.shape)
        view = view.astype(array.dtype)
    rows, cols = slice(view.shape[0] // 3, view.shape[0]), slice(0, 1 + view.shape[1] // 2)
    expected = view[rows, cols].astype(dtype)
    expected = expected.conj() if conjugate else expected
    block = column_block(view, rows, cols, dtype, conjugate=conjugate)
    assert block.flags.c_contiguous
    assert block.dtype == dtype
    assert block.dtype.isnative
    assert np.array_equal(block, expected)
    out = np.full((expected.shape[0] + pad, expected.shape[1] + pad), 7, dtype)
    assert column_block(view, rows, cols, dtype, conjugate=conjugate, out=out) is out
    assert np.array_equal(out[: expected.shape[0], : expected.shape[1]], expected)
    assert not out[expected.shape[0] :].any()
    assert not out[:, expected.shape[1] :].any()
