"""Results of an earlier run of the same job, given to a coordinator before its first event."""

from __future__ import annotations

from collections.abc import Iterable

from cmm.core.errors import InternalError
from cmm.core.task import Assignment
from cmm.engine.coordinator import Coordinator


def restore(coordinator: Coordinator, assignments: Iterable[Assignment]) -> int:
    """Enter tasks whose results are there, in the order in which they were accepted; returns how many are of use.

    They are not handed out again, new numbers begin above theirs, they count for the policy's cap and as `restored`.
    Whatever else the coordinator knows (times, workers) begins anew. Raises InternalError after the first event.
    """
    ledger = coordinator.ledger
    if ledger.issued():
        raise InternalError("results are restored before the first event")
    for assignment in assignments:
        if ledger.find(assignment.task) is not None:
            continue
        item = ledger.issue(assignment)
        if ledger.useful(item):
            coordinator.decoder.add(assignment.task, ledger.settle(item))
            coordinator.counts.restored += 1
    coordinator.counts.issued += coordinator.counts.restored
    coordinator.supply.skip(ledger.issued())
    return coordinator.counts.restored
