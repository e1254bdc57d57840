"""Matrices in .npz, HDF5 and Matrix Market files: every kind that is read, every refusal, every output."""

from __future__ import annotations

import gzip
import io
import os
import struct
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

from cmm.core.errors import CmmError, DataError, ExitCode, InputMissingError, OutputError, UsageError
from cmm.core.jobfile import parse
from cmm.core.spec import split_member
from cmm.matrices import room
from cmm.matrices.files import MatrixSource, as_source, check_output, open_matrix, write_matrix
from cmm.matrices.sparse import SparseMatrix
from cmm.matrices.stored import Deferred, Stored

DTYPES = ["<f4", ">f4", "<f8", "<c8", ">c16", "<i2", ">i8", "?", "<f2"]


def sample(dtype: str = "<f8", shape: tuple[int, ...] = (37, 23), order: str = "C") -> np.ndarray:
    rng = np.random.default_rng(1)
    values = rng.integers(-9, 9, shape) + (1j * rng.integers(-9, 9, shape) if np.dtype(dtype).kind == "c" else 0)
    return np.asarray(values.astype(dtype), order=order)


def whole(source: MatrixSource) -> np.ndarray:
    return np.asarray(source.array)


def refused(path: Path | str, *words: str, kind: type[CmmError] = DataError) -> str:
    with pytest.raises(kind) as caught:
        open_matrix(path, "--b")
    text = str(caught.value)
    assert text.startswith("--b: ")
    assert "\n" not in text
    for word in words:
        assert word in text, text
    return text


# ---- names ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "file", "member"), [
    ("x.npz", "x.npz", None), ("d/x.npz::A", "d/x.npz", "A"), ("x.h5::/g/A", "x.h5", "/g/A"),
    ("x.HDF5::A", "x.HDF5", "A"), ("x.npy::A", "x.npy::A", None),
    ("x.h5::", "x.h5", None), ("x.h5::/", "x.h5", None), ("x.h5::a::b", "x.h5", "a::b"),
    ("x.h5/y.npy", "x.h5/y.npy", None), ("a.npz::b.h5::c", "a.npz", "b.h5::c"),
])  # fmt: skip
def test_names_of_matrices_in_files(text: str, file: str, member: str | None) -> None:
    assert split_member(text) == (file, member)


def test_the_report_lies_beside_the_file_of_c() -> None:
    spec = parse(["--a", "a.npz::x", "--b", "a.npz::y", "--out", "c.h5::/g/C"]).spec
    assert spec.report.endswith("/c.h5.report.json")
    with pytest.raises(UsageError, match="must not be the file of"):
        parse(["--a", "a.h5::x", "--b", "b.npy", "--out", "a.h5::C"])


# ---- .npz ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", ["C", "F"])
def test_npz_members_are_mapped_or_unfolded(tmp_path: Path, dtype: str, order: str) -> None:
    array = sample(dtype, order=order)
    np.savez(tmp_path / "plain.npz", first=np.zeros(3), A=array)
    np.savez_compressed(tmp_path / "packed.npz", A=array, first=np.zeros(3))
    plain = open_matrix(f"{tmp_path}/plain.npz::A")
    assert isinstance(plain.array, np.memmap)
    assert plain.memory == 0
    packed = open_matrix(f"{tmp_path}/packed.npz::A.npy")
    assert packed.memory == array.nbytes
    for source in (plain, packed):
        assert (source.shape, source.dtype) == (array.shape, array.dtype)
        assert np.array_equal(whole(source), array)
        assert source.name.endswith("npz::A") or source.name.endswith("npz::A.npy")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("shape", [(0,), (6,), (0, 4), (4, 0), (1, 1)])
def test_npz_vectors_and_empty_matrices(tmp_path: Path, save: Any, shape: tuple[int, ...]) -> None:
    save(tmp_path / "v.npz", np.ones(shape))
    source = open_matrix(tmp_path / "v.npz")
    assert source.shape == (shape if len(shape) == 2 else (shape[0], 1))
    assert np.array_equal(whole(source), np.ones(source.shape))


def test_npz_is_not_unfolded_before_it_is_needed(tmp_path: Path) -> None:
    array = sample()
    np.savez_compressed(tmp_path / "p.npz", A=array)
    source = open_matrix(tmp_path / "p.npz", load=False)
    assert isinstance(source.array, Deferred)
    assert (source.shape, source.dtype, source.memory) == (array.shape, array.dtype, array.nbytes)
    assert np.array_equal(source.array[3:9, 2:5], array[3:9, 2:5])


def test_npz_that_is_a_sparse_matrix(tmp_path: Path) -> None:
    for form in ("csr", "csc", "coo", "bsr", "dia"):
        matrix = sp.random(60, 40, density=0.03, format="csr", random_state=2).asformat(form)
        sp.save_npz(tmp_path / "s.npz", matrix)
        source = open_matrix(tmp_path / "s.npz")
        assert source.shape == matrix.shape
        assert np.array_equal(whole(source), matrix.toarray())


def patched(path: Path, old: bytes, new: bytes, count: int = 1) -> Path:
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, count))
    return path


def test_npz_refusals(tmp_path: Path) -> None:
    array = sample()
    two, packed, other = tmp_path / "two.npz", tmp_path / "p.npz", tmp_path / "o.npz"
    np.savez(two, A=array, B=array)
    refused(two, "must name one of the members, as in two.npz::NAME", "It has A, B")
    refused(f"{two}::C", "It has A, B", kind=InputMissingError)
    (tmp_path / "no.npz").write_bytes(b"no zip archive")
    refused(tmp_path / "no.npz", "not a zip file")
    (tmp_path / "empty.npz").write_bytes(b"")
    refused(tmp_path / "empty.npz")
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("readme.txt", "nothing")
    refused(other, "must hold a .npy member")
    refused(f"{other}::readme.txt", "no .npy signature")
    np.savez(other, A=np.array([None, 1], dtype=object))
    refused(other, "Python objects")
    for save in (np.savez, np.savez_compressed):
        save(other, A=np.ones((2, 2, 2)))
        refused(other, "2 or 1 dimensions")
        save(other, A=np.array(["text"]))
        refused(other, "must hold numbers")
    os.truncate(two, two.stat().st_size // 2)
    refused(f"{two}::A")
    np.savez_compressed(packed, A=array)
    middle = packed.stat().st_size // 2
    data = packed.read_bytes()
    packed.write_bytes(data[:middle] + bytes([data[middle] ^ 255]) + data[middle + 1 :])
    refused(packed, "that can be read", "CRC")


def zipped(path: Path, header: bytes, body: bytes, **lies: int) -> Path:
    """A deflated member whose directory entry tells lies."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("A.npy", header + body)
        for name, value in lies.items():
            setattr(archive.filelist[0], name, value)
    return path


def npy_header(shape: tuple[int, ...], dtype: str = "<f8") -> bytes:
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": dtype, "fortran_order": False, "shape": shape})
    return head.getvalue()


def test_npz_sizes_are_judged_before_anything_is_allocated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    petabyte = npy_header((1 << 24, 1 << 23))
    refused(zipped(tmp_path / "a.npz", petabyte, b""), "must be a complete .npy member")
    need = len(petabyte) + (1 << 50)
    refused(zipped(tmp_path / "b.npz", petabyte, b"", file_size=need), "plausible size")
    huge = npy_header((0, 1 << 61))
    refused(zipped(tmp_path / "c.npz", huge, b""), "dimensions from 0 to 2^40")
    long = b"\x93NUMPY\x02\x00" + struct.pack("<I", (1 << 32) - 1) + b"{" * (1 << 20)
    refused(zipped(tmp_path / "d.npz", long, bytes(1 << 20)), "valid .npy header")
    bomb = zipped(tmp_path / "e.npz", npy_header((1 << 10, 1 << 10)), bytes(1 << 23))
    assert bomb.stat().st_size < 10_000
    monkeypatch.setattr(room, "available", lambda: 1 << 20)
    refused(bomb, "must fit into memory")


# ---- HDF5 ----------------------------------------------------------------------------------------------------------


def hdf5(path: Path, **datasets: Any) -> Path:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        for name, value in datasets.items():
            data, options = value if isinstance(value, tuple) else (value, {})
            file.create_dataset(name.replace("__", "/"), data=data, **options)
    return path


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [
    {}, {"chunks": (10, 7)}, {"chunks": (37, 1), "compression": "gzip"}, {"chunks": (1, 23), "shuffle": True},
    {"chunks": (5, 5), "compression": "lzf", "fletcher32": True}, {"maxshape": (None, None)},
])  # fmt: skip
def test_hdf5_datasets(tmp_path: Path, dtype: str, options: dict[str, Any]) -> None:
    array = sample(dtype)
    path = hdf5(tmp_path / "x.h5", g__A=(array, options), other=np.zeros(2))
    source = open_matrix(f"{path}::/g/A")
    assert isinstance(source.array, Stored if options else np.memmap)
    assert (source.shape, source.dtype) == (array.shape, array.dtype)
    assert np.array_equal(whole(source), array)
    assert np.array_equal(source.array[4:33, 3:4], array[4:33, 3:4])
    assert np.array_equal(whole(open_matrix(f"{path}::g")), array)  # the only dataset of a group


def test_hdf5_block_by_block_is_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With bands, caches and chunks of all relations."""
    array = sample(shape=(211, 53))
    rng = np.random.default_rng(3)
    for band, cache, chunks in ((1, 1, (10, 7)), (1000, 5000, (64, 5)), (1 << 20, 1 << 20, (3, 53)), (1, 1, (211, 2))):
        monkeypatch.setattr("cmm.matrices.hdf5.BAND_BYTES", band)
        monkeypatch.setattr("cmm.matrices.hdf5.CACHE_BYTES", cache)
        path = hdf5(tmp_path / f"x{band}-{chunks[0]}.h5", A=(array, {"chunks": chunks}))
        matrix = open_matrix(path).array
        for _ in range(60):
            (i, k), (j, m) = np.sort(rng.integers(0, 212, 2)), np.sort(rng.integers(0, 54, 2))
            assert np.array_equal(matrix[i:k, j:m], array[i:k, j:m])


def test_hdf5_other_layouts(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    array = sample(shape=(30, 8))
    with h5py.File(tmp_path / "x.h5", "w", userblock_size=512) as file:
        file["block"] = array
        file["vector"] = array[:, 0]
        file.create_dataset("parts", data=array[:, 0], chunks=(7,))
        file.create_dataset("never", (5, 6), "f8")
        file.create_dataset("empty", (0, 6), "f8", maxshape=(None, 6))
        file["link"] = h5py.SoftLink("/block")
        layout = h5py.VirtualLayout((60, 8), array.dtype)
        layout[:30], layout[30:] = h5py.VirtualSource(file["block"]), h5py.VirtualSource(file["block"])
        file.create_virtual_dataset("virtual", layout)
        file.create_dataset("flags", data=array > 0)
    for name, expected in (("block", array), ("vector", array[:, :1]), ("parts", array[:, :1]), ("link", array),
                           ("never", np.zeros((5, 6))), ("empty", np.zeros((0, 6))), ("flags", array > 0),
                           ("virtual", np.concatenate([array, array]))):  # fmt: skip
        source = open_matrix(f"{tmp_path}/x.h5::{name}")
        assert source.shape == expected.shape
        assert np.array_equal(whole(source), expected), name


def test_hdf5_refusals(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    path = hdf5(tmp_path / "x.h5", g__A=sample(), text="words", cube=np.zeros((2, 2, 2)), scalar=3.0)
    refused(path, "must name one dataset", "It has cube, g/A, scalar, text")
    refused(f"{path}::nothing", "must name a dataset of the file", kind=InputMissingError)
    refused(f"{path}::g/A/B", kind=InputMissingError)
    refused(f"{path}::text", "must hold numbers")
    refused(f"{path}::cube", "2 or 1 dimensions")
    refused(f"{path}::scalar", "2 or 1 dimensions")
    with h5py.File(path, "a") as file:
        file["null"] = h5py.Empty("f8")
        file["type"] = np.dtype("f8")
    refused(f"{path}::null", "must hold numbers")
    refused(f"{path}::type", "must name a dataset")
    (tmp_path / "no.h5").write_bytes(b"no such format" * 100)
    refused(tmp_path / "no.h5", "file signature not found")
    (tmp_path / "empty.h5").write_bytes(b"")
    refused(tmp_path / "empty.h5")
    refused(tmp_path / "missing.h5::A", "existing file", kind=InputMissingError)


def test_hdf5_elements_in_other_files_are_refused(tmp_path: Path) -> None:
    """Mapped at the place that they have in the other file, they would be other numbers."""
    h5py = pytest.importorskip("h5py")
    array = sample(shape=(30, 8))
    other = hdf5(tmp_path / "other.h5", A=array, g__B=array)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["padding"] = np.ones((300, 8))
        file["link"], file["group"] = h5py.ExternalLink("other.h5", "/A"), h5py.ExternalLink("other.h5", "/g")
        file["dangling"], file["gone"] = h5py.SoftLink("/nowhere"), h5py.ExternalLink("gone.h5", "/A")
        file.create_dataset("raw", array.shape, "f8", external=[(tmp_path / "raw.bin", 0, array.nbytes)])[:] = array
        for name, source in (("others", h5py.VirtualSource(str(other), "A", array.shape)),
                             ("missing", h5py.VirtualSource(".", "nowhere", array.shape)),
                             ("linked", h5py.VirtualSource(".", "link", array.shape)),
                             ("raws", h5py.VirtualSource(".", "raw", array.shape))):  # fmt: skip
            layout = h5py.VirtualLayout(array.shape, "f8")
            layout[:] = source
            file.create_virtual_dataset(name, layout)
    path = tmp_path / "x.h5"
    refused(f"{path}::link", "of the file itself", f"Name it as {other}::/A.")
    refused(f"{path}::group/B", "of the file itself", f"Name it as {other}::/g/B.")
    for name in ("raw", "others", "missing", "linked", "raws"):
        refused(f"{path}::{name}", "must have its elements in the file itself")
    for name in ("dangling", "gone"):
        refused(f"{path}::{name}", "a link to nothing", kind=InputMissingError)
    (tmp_path / "alias.h5").symlink_to(path)
    with h5py.File(path, "a") as file:
        del file["padding"]
        file["plain"] = array
    assert np.array_equal(whole(open_matrix(tmp_path / "alias.h5::plain")), array)


def test_hdf5_chunks_that_are_damaged_are_told_when_they_are_read(tmp_path: Path) -> None:
    path = hdf5(tmp_path / "x.h5", A=(sample(), {"chunks": (37, 23), "fletcher32": True}))
    data = bytearray(path.read_bytes())
    place = data.index(sample()[10].tobytes())
    data[place] ^= 255
    path.write_bytes(data)
    source = open_matrix(path, "--b")
    with pytest.raises(DataError, match="filter returned failure"):
        whole(source)


def test_hdf5_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.h5").write_bytes(b"whatever")
    monkeypatch.setitem(sys.modules, "h5py", None)
    refused(tmp_path / "x.h5", "pip install 'cmm[hdf5]'", kind=UsageError)
    with pytest.raises(UsageError, match="h5py"):
        check_output(tmp_path / "c.h5")


# ---- Matrix Market -------------------------------------------------------------------------------------------------

BANNER = "%%MatrixMarket matrix "
MARKET: list[tuple[str, str, list[list[Any]]]] = [
    ("coordinate real general", "3 2 3\n1 1 1.5\n3 2 -2e3\n2 1 .5\n", [[1.5, 0], [0.5, 0], [0, -2000]]),
    ("coordinate pattern symmetric", "2 2 2\n1 1\n2 1\n", [[1.0, 1.0], [1.0, 0.0]]),
    ("coordinate real skew-symmetric", "2 2 1\n2 1 3.5\n", [[0, -3.5], [3.5, 0]]),
    ("coordinate complex hermitian", "2 2 2\n1 1 1 0\n2 1 1 2\n", [[1, 1 - 2j], [1 + 2j, 0]]),
    ("coordinate integer general", "1 2 2\n1 1 4294967297\n1 2 -3\n", [[4294967297, -3]]),
    ("coordinate integer symmetric", "2 2 1\n2 1 9007199254740992\n", [[0, 2**53], [2**53, 0]]),
    ("coordinate real general", "1 1 2\n1 1 1\n1 1 2\n", [[3.0]]),
    ("coordinate real general", "2 3 0\n", [[0.0] * 3] * 2),
    ("array real general", "2 2\n1\n2\n3\ninf\n", [[1, 3], [2, np.inf]]),
    ("array real symmetric", "2 2\n1\n2\n3\n", [[1, 2], [2, 3]]),
    ("array real skew-symmetric", "2 2\n2\n", [[0, -2], [2, 0]]),
    ("array complex general", "1 2\n1 2\n3 4\n", [[1 + 2j, 3 + 4j]]),
    ("array integer general", "2 1\n-9007199254740992\n5", [[-(2**53)], [5]]),
    ("array complex hermitian", "2 2\n1 0\n2 3\n4 0\n", [[1, 2 - 3j], [2 + 3j, 4]]),
]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("kind", "body", "expected"), MARKET, ids=[f"{kind}-{len(body)}" for kind, body, _ in MARKET])
def test_matrix_market_fields_and_symmetries(
    tmp_path: Path, packed: bool, kind: str, body: str, expected: list[list[Any]]
) -> None:
    text = f"{BANNER}{kind}\n% a comment\n\n{body}".encode()
    path = tmp_path / ("x.mtx.gz" if packed else "x.mtx")
    path.write_bytes(gzip.compress(text) if packed else text)
    early, source = open_matrix(path, load=False), open_matrix(path)
    assert early.shape == source.shape == np.shape(expected)
    assert early.dtype == source.dtype
    assert source.dtype.kind == ("i" if "integer" in kind else "c" if "complex" in kind else "f")
    assert np.array_equal(whole(source), np.array(expected, source.dtype))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("comment", ["%" + "x" * (3 << 20), "% \n" * 100_000, "%" + "y 2 2 1\r" * 9000, " % 2 2 1"])
def test_matrix_market_comments_of_any_length(tmp_path: Path, comment: str, packed: bool) -> None:
    text = f"{BANNER}coordinate real general\n{comment}\n2 2 1\n1 2 1.5\n".encode()
    path = tmp_path / ("x.mtx.gz" if packed else "x.mtx")
    path.write_bytes(gzip.compress(text) if packed else text)
    assert np.array_equal(whole(open_matrix(path)), [[0, 1.5], [0, 0]])


def test_matrix_market_comments_without_end(tmp_path: Path) -> None:
    (tmp_path / "x.mtx").write_text(f"{BANNER}array real general\n%" + "x" * (17 << 20))
    refused(tmp_path / "x.mtx", "no line of sizes in the first 16 MB")
    (tmp_path / "y.mtx").write_text(f"{BANNER}array real general\n%" + "x" * (1 << 20))
    refused(tmp_path / "y.mtx", "must have a line with 2 sizes")


@pytest.mark.parametrize(("kind", "body", "words"), [
    ("array real general", "2 2\n1\n2\n3\n", "3 numbers where the header promises 4"),
    ("array real general", "2 2\n1\n2\n3\n4\n5\n", "5 numbers"),
    ("array real general", "2 1\n1\n2.5E", "among the numbers"),
    ("array real general", "2 1\n1\n2.5 x\n", "among the numbers"),
    ("array real general", "2 1\n1d5\n2\n", "among the numbers"),
    ("array real general", "2 1\n1\0\n2\n", "among the numbers"),
    ("array real general", "2 1 1\n1\n2\n", "2 sizes"),
    ("array real general", "", "2 sizes"),
    ("array real general", "2 -1\n", "2 sizes"),
    ("array pattern general", "2 1\n", "known kind"),
    ("array quaternion general", "2 1\n", "known kind"),
    ("array real symmetric", "2 1\n1\n2\n", "must be square"),
    ("coordinate integer general", "1 1 1\n1 1 1.5\n", "among the numbers"),
    ("coordinate integer general", "1 1 1\n1 1 99999999999999999999\n", "out of range"),
    ("coordinate integer general", "1 1 2\n1 1 9223372036854775807\n1 1 1\n", "must add up"),
    ("coordinate real general", "1 1 1\n2 1 1\n", "out of bounds"),
    ("coordinate real general", "1 1 1\n0 1 1\n", "out of bounds"),
    ("coordinate real general", "2 2 1\n1 1 1 7\n", "4 numbers"),
    ("coordinate real general", "2 2 2\n1 1\n1 2 3\n", "5 numbers"),
    ("coordinate real general", f"2 2 {10**15}\n1 1 1\n", "as many lines as its header says"),
    ("coordinate real general", f"{10**18} 2 0\n", "dimensions"),
    ("array real general", f"{10**6} {10**6}\n1\n", "as many lines as its header says"),
])  # fmt: skip
def test_matrix_market_refusals(tmp_path: Path, kind: str, body: str, words: str) -> None:
    path = tmp_path / "x.mtx"
    path.write_text(f"{BANNER}{kind}\n{body}")
    refused(path, words)
    packed = tmp_path / "x.mtx.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    refused(packed)


def test_matrix_market_files_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "x.mtx"
    for data, words in ((b"", "an empty file"), (b"1 2 3\n", "whose first line"), (b"\0" * 99, "whose first line")):
        path.write_bytes(data)
        refused(path, words)
    packed = tmp_path / "x.mtx.gz"
    packed.write_bytes(b"not packed")
    refused(packed, "must be a Matrix Market file that can be read")
    packed.write_bytes(gzip.compress(f"{BANNER}array real general\n50 50\n{'1.5 ' * 2500}\n".encode())[:-20])
    refused(packed)


def test_matrix_market_sizes_are_judged_before_anything_is_allocated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.mtx.gz"
    path.write_bytes(gzip.compress(f"{BANNER}array real general\n1000 1000\n".encode() + b"1\n" * 1_000_000))
    assert path.stat().st_size < 10_000
    monkeypatch.setattr(room, "available", lambda: 1 << 20)
    refused(path, "must fit into memory")
    early = open_matrix(path, load=False)
    assert early.memory == 8_000_000
    path = tmp_path / "wide.mtx"
    path.write_text(f"{BANNER}coordinate real general\n1 {1 << 39} 1\n1 1 1\n")
    refused(path, "must fit into memory")


def test_matrix_market_sparse_stays_sparse(tmp_path: Path) -> None:
    matrix = sp.random(3000, 200, density=0.002, random_state=4, format="coo")
    scipy.io.mmwrite(tmp_path / "s.mtx", matrix)
    source, early = open_matrix(tmp_path / "s.mtx"), open_matrix(tmp_path / "s.mtx", load=False)
    assert isinstance(source.array, SparseMatrix)
    assert source.memory < matrix.nnz * 40 + 64 * 4 * 3001
    assert source.memory <= early.memory < source.bytes
    assert np.array_equal(whole(source), matrix.toarray())
    scipy.io.mmwrite(tmp_path / "d.mtx", sp.random(50, 40, density=0.6, random_state=4))
    assert isinstance(open_matrix(tmp_path / "d.mtx").array, np.ndarray)  # dense is smaller


# ---- any file ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["npz", "h5", "mtx", "mtx.gz"])
def test_inputs_that_cannot_be_opened(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"folder.{suffix}").mkdir()
    for name in ("missing", "folder"):
        assert refused(tmp_path / f"{name}.{suffix}", kind=InputMissingError)
    assert InputMissingError.exit_code is ExitCode.NO_INPUT


def test_a_file_that_is_written_to_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, sample())
    source = open_matrix(path, "--a")
    source.check_unchanged()
    with path.open("r+b") as file:
        file.seek(200)
        file.write(b"12345678")
    os.utime(path, ns=(0, source.stamp[2] + 1) if source.stamp else None)
    with pytest.raises(DataError, match="--a: must not change while it is read"):
        source.check_unchanged()


def test_a_file_that_is_replaced_or_deleted_has_not_changed(tmp_path: Path) -> None:
    path, array = tmp_path / "a.npy", sample()
    np.save(path, array)
    source = open_matrix(path)
    np.save(tmp_path / "new.npy", array + 1)
    os.replace(tmp_path / "new.npy", path)
    source.check_unchanged()
    path.unlink()
    source.check_unchanged()
    assert np.array_equal(whole(source), array)
    as_source(array, "A").check_unchanged()


# ---- output --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["c.npz", "c.npz::K", "c.h5", "c.hdf5::/results/C", "c.mtx"])
@pytest.mark.parametrize("dtype", ["<f4", "<f8", "<c8", "<c16", "<i8"])
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 1), (41, 29)])
def test_written_matrices_read_back(tmp_path: Path, name: str, dtype: str, shape: tuple[int, int]) -> None:
    if "h" in Path(split_member(name)[0]).suffix:
        pytest.importorskip("h5py")
    rng = np.random.default_rng(5)
    for layout in ("C", "F"):
        array = rng.normal(size=shape) * 10.0 ** rng.integers(-30, 30, shape)
        array = np.asarray((array / (1 + abs(array)) * 1e9 if dtype == "<i8" else array).astype(dtype), order=layout)
        check_output(tmp_path / name, overwrite=True)
        write_matrix(f"{tmp_path}/{name}", array)
        assert [path.name for path in tmp_path.iterdir()] == [split_member(name)[0]]
        source = open_matrix(f"{tmp_path}/{name}")
        assert source.shape == shape
        assert source.dtype == array.dtype or name == "c.mtx"
        assert np.array_equal(whole(source).astype(dtype), array)
    if name == "c.npz::K" and array.size:
        assert np.array_equal(np.load(tmp_path / "c.npz")["K"], array)


def test_outputs_that_cannot_be_written(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    path = hdf5(tmp_path / "a.h5", A=sample())
    for name in ("a.h5", "a.h5::C", "a.h5::/A"):
        with pytest.raises(OutputError, match="must not be an input"):
            check_output(f"{tmp_path}/{name}", [f"{path}::A"], overwrite=True)
    with pytest.raises(OutputError, match="--overwrite"):
        check_output(f"{path}::C")
    for name in ("c.mtx.gz", "c.txt", "c.h5::/a/../b", "c.npz::."):
        with pytest.raises(UsageError):
            check_output(f"{tmp_path}/{name}")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["c.npz", "c.h5", "c.mtx"])
def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    """In a process of its own, since HDF5 does not forget a file that it could not close."""
    import resource
    import subprocess

    if name == "c.h5":
        pytest.importorskip("h5py")
    code = (
        "import numpy as np, sys, signal\n"
        "from cmm.core.errors import OutputError\n"
        "from cmm.matrices.files import write_matrix\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "try:\n    write_matrix(sys.argv[1], np.full((1000, 1000), 1 / 3))\n"
        "except OutputError as error:\n    print(error)\n    sys.exit(73)\n"
    )
    limit = (1 << 16, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / name)], capture_output=True, text=True,
                          check=False, timeout=60, env={**os.environ, "PYTHONPATH": str(Path.cwd())},
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))  # fmt: skip
    assert (done.returncode, done.stderr) == (73, ""), done
    assert done.stdout.startswith("--out: must be writable")
    assert list(tmp_path.iterdir()) == []
