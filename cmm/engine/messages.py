"""Texts for the user about how a job ended."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from cmm.core.errors import Status
from cmm.engine.policy import Policy, Worker

SHOWN = 20  # numbers listed before "and n more"


def gave_up(waited: float, policy: Policy, results: int, blocks: int, missing: Collection[int],
            workers: Mapping[int, Worker]) -> str:  # fmt: skip
    """Why an incomplete job was given up: what is missing, who is silent, lost or retired, and the remedy."""
    silent = [w.number for w in workers.values() if w.gone is None and (w.holds or not w.joined)]
    parts = [f"workers not answering: {listed(silent)}"] if silent else []
    for status, text in ((Status.LOST, "lost"), (Status.REJECTED, "retired for wrong results")):
        gone = [w.number for w in workers.values() if w.gone is status]
        parts += [f"{text}: {listed(gone)}"] if gone else []
    return (
        f"gave up {waited:.1f} s after the last result (--give-up {policy.give_up:g}): {results} results for {blocks} "
        f"blocks, {len(missing)} missing ({listed(sorted(missing))}); {'; '.join(parts) or 'nobody is left'}. "
        "Raise --give-up, or leave it out: the master then computes what is missing."
    )


def listed(numbers: Sequence[int]) -> str:
    """The numbers, or the first of them and how many there are."""
    more = len(numbers) - SHOWN
    return ", ".join(map(str, numbers[:SHOWN])) + (f" and {more} more" if more > 0 else "")
