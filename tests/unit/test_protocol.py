"""Headers survive the round trip, and nothing malformed gets as far as an allocation."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmm.core.errors import InternalError, UsageError
from cmm.core.rules import message_limit
from cmm.runtime.protocol import MAGIC, WORDS, Down, Header, Up, cut_bytes, pack_program

good = st.builds(
    Header,
    kind=st.sampled_from([*Down, *Up]).map(int),
    job=st.integers(0, 2**40),
    task=st.integers(-1, 2**40),
    dtype=st.integers(0, 3),
    rows=st.integers(0, 10**6),
    cols_a=st.integers(0, 10**6),
    cols_b=st.integers(0, 10**6),
    parts_a=st.integers(1, 99),
    parts_b=st.integers(1, 99),
    outputs=st.integers(1, 99),
    pairs=st.integers(1, 99),
    nanoseconds=st.integers(0, 2**60),
    value=st.integers(0, 255),
    length=st.integers(0, 1 << 20),
)


@given(good)
def test_round_trip(header: Header) -> None:
    assert Header.unpack(header.pack()) == header


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=WORDS, max_size=WORDS))
def test_random_words_are_refused_or_sane(words: list[int]) -> None:
    """With the right magic the other words are judged: every accepted header describes something allocatable."""
    words[0] = MAGIC
    try:
        header = Header.unpack(np.array(words, dtype=np.int64))
    except InternalError:
        return
    assert 0 <= header.rows * header.cols_a < 2**63
    assert header.length <= 1 << 20


@pytest.mark.parametrize(
    "change",
    [{"rows": -1}, {"dtype": 4}, {"dtype": -1}, {"parts_a": 0}, {"outputs": 1 << 20}, {"length": -5},
     {"length": 1 << 30}, {"rows": 1 << 40, "cols_a": 1 << 40}],
)  # fmt: skip
def test_impossible_headers(change: dict[str, int]) -> None:
    header = dataclasses.replace(Header(Down.TASK, 1, 2, 1, 10, 10, 10), **change)
    with pytest.raises(InternalError, match="impossible header"):
        Header.unpack(header.pack())


def test_foreign_messages() -> None:
    words = Header(Down.TASK, 1).pack()
    words[0] += 1
    with pytest.raises(InternalError, match="foreign"):
        Header.unpack(words)
    with pytest.raises(InternalError, match="foreign"):
        Header.unpack(words[:5])


@pytest.mark.parametrize("limit", [1024, 1031, 1 << 14, 1 << 20])
def test_large_payloads_are_cut(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setenv("CMM_MESSAGE_LIMIT", str(limit))
    assert message_limit() == limit
    array = np.arange(1033, dtype=np.float64)
    parts = cut_bytes(array)
    assert max(part.size for part in parts) <= limit
    assert b"".join(part.tobytes() for part in parts) == array.tobytes()
    assert len(parts) == -(-array.nbytes // limit)
    assert all(np.shares_memory(part, array) for part in parts)


@pytest.mark.parametrize("text", ["0", "1023", "-5", "1e6", "much", str(1 << 31), " ", "9" * 30])
def test_an_impossible_limit_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("CMM_MESSAGE_LIMIT", text)
    with pytest.raises(UsageError, match="CMM_MESSAGE_LIMIT: must be a number of bytes from 1024 to 1073741824"):
        message_limit()


def test_empty_payload_is_no_message() -> None:
    assert cut_bytes(np.empty((0, 3))) == []


def test_program() -> None:
    assert pack_program((((0, 1), (2, 0)), ((1, 1),))).tolist() == [[0, 0, 1], [0, 2, 0], [1, 1, 1]]
