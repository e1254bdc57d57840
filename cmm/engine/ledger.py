"""Which blocks are missing, who is expected to deliver them, and how many coded results help. Counts only.

A task is *direct* when its result is one unknown times a number, *coded* otherwise. A holding is *late* when its worker
is overdue. From these the ledger keeps, each at a cost proportional to what changed:

    missing     wanted unknowns without a direct result
    promised    missing unknowns that a worker in good time computes directly
    uncovered   missing unknowns that only overdue workers compute directly: the deficit that repairs are issued for
    helping     output rows of coded tasks, accepted or in good time, that still contain a missing unknown
    expected    open tasks of any kind in the hands of a worker in good time
    settled     tasks whose results are in

A task is *closed* once its result is in, nobody holds it, and it can be made again from its number: then all that is
kept is whom it was given to, so that a late answer is still recognised, and a job of very many tasks stays small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cmm.codes.base import Code
from cmm.core.errors import InternalError
from cmm.core.task import Assignment, Combination
from cmm.linalg.rows import CodedRow


@dataclass(eq=False, slots=True)
class Item:
    """A task that was issued.

    given : workers it was sent to
    refused_from : workers whose result of it was rejected
    prompt, late : how many workers in good time, and how many overdue ones, hold it
    direct : the unknown it delivers, or None
    open_blocks : for coded tasks, how many missing unknowns its rows contain
    """

    assignment: Assignment
    repair: bool = False
    direct: int | None = None
    given: tuple[int, ...] = ()
    refused_from: tuple[int, ...] = ()
    prompt: int = 0
    late: int = 0
    done: bool = False
    open_blocks: int = 0
    helps: int = 0  # what it adds to the ledger's `helping` at present
    rows: tuple[CodedRow, ...] | None = None

    @property
    def held(self) -> bool:
        return self.prompt + self.late > 0


class Ledger:
    """The books of one job.

    Parameters
    ----------
    code : gives coefficient rows
    follow_coded : keep track of which coded tasks still help (needed where repairs are made, wasted elsewhere)
    """

    def __init__(self, code: Code, *, follow_coded: bool) -> None:
        matrix = code.targets.matrix
        wanted = range(code.unknowns) if matrix is None else np.unique(matrix.indices).tolist()
        self.missing: set[int] = set(wanted)
        self.promised: set[int] = set()
        self.uncovered: set[int] = set()
        self.helping = 0
        self.expected = 0
        self.settled = 0
        self.items: dict[int, Item] = {}  # but for those that are closed
        self._closed: dict[int, tuple[int, ...]] = {}  # task -> whom it was given to
        self._groups: dict[tuple[int, ...], tuple[int, ...]] = {}  # one object for each of those
        self._blocks: dict[int, int] = {}  # closed task that is no fixed one -> the unknown that it is
        self._code, self._follow = code, follow_coded
        self._prompt: dict[int, int] = {}  # unknown -> direct tasks in good time
        self._late: dict[int, int] = {}
        self._coded: dict[int, list[Item]] = {}  # missing unknown -> coded tasks that contain it

    def issue(self, assignment: Assignment, *, repair: bool = False) -> Item:
        """Enter a task that is about to be sent or computed."""
        item = Item(assignment, repair, direct_unknown(assignment))
        self.items[assignment.task] = item
        if item.direct is None and self._follow:
            self._register(item)
        return item

    def find(self, task: int) -> Item | None:
        """The item of a task that was issued; of a closed one a copy."""
        item = self.items.get(task)
        if item is None and task in self._closed:
            unknown = self._blocks.get(task)
            assignment = self._code.task(task) if unknown is None else direct_task(self._code, task, unknown)
            item = Item(assignment, direct=direct_unknown(assignment), given=self._closed[task], done=True)
        return item

    def issued(self) -> set[int]:
        """The numbers of all tasks that were issued."""
        return {*self.items, *self._closed}

    def hold(self, item: Item, change: int, *, late: bool) -> None:
        """One holder more (+1) or less (-1), in good time or late."""
        before = item.prompt > 0 and not item.done
        if late:
            item.late += change
        else:
            item.prompt += change
        self.expected += (item.prompt > 0 and not item.done) - before
        if item.direct is None:
            self._weigh(item)
        else:
            counts = self._late if late else self._prompt
            counts[item.direct] = counts.get(item.direct, 0) + change
            if not counts[item.direct]:
                del counts[item.direct]
            self._cover(item.direct)
        self._close(item)

    def settle(self, item: Item) -> tuple[CodedRow, ...]:
        """The task's result is in. Returns its rows."""
        rows = self.rows(item)
        self.expected -= item.prompt > 0
        item.done = True
        self.settled += 1
        for row in rows:
            if row.singleton:
                self._found(int(row.indices[0]))
        if item.direct is None:
            self._weigh(item)
        item.rows = None
        self._close(item)
        return rows

    def rows(self, item: Item) -> tuple[CodedRow, ...]:
        """Coefficient rows of a task, kept until it is settled."""
        if item.rows is None:
            item.rows = tuple(self._code.rows(item.assignment))
        return item.rows

    def useful(self, item: Item) -> bool:
        """Whether its result would still be used."""
        return not item.done and (item.direct is None or item.direct in self.missing)

    def most_wanted(self, candidates: Sequence[int]) -> int:
        """The first missing candidate that nobody holds, else the first missing one, else any missing unknown.

        Raises InternalError when nothing is missing.
        """
        missing = [unknown for unknown in candidates if unknown in self.missing] or sorted(self.missing)
        if not missing:
            raise InternalError("every block was computed, yet the decoder cannot decode: a fault of the decoder")
        return next((u for u in missing if u not in self.uncovered and u not in self.promised), missing[0])

    # ---- private -----------------------------------------------------------------------------------------------

    def _close(self, item: Item) -> None:
        task = item.assignment.task
        fixed = task < self._code.P
        if not item.done or item.held or item.open_blocks or not (fixed or item.assignment.systematic is not None):
            return
        if self.items.pop(task, None) is not None:
            self._closed[task] = self._groups.setdefault(item.given, item.given)
            if item.direct is not None and not fixed:
                self._blocks[task] = item.direct

    def _register(self, item: Item) -> None:
        for row in self.rows(item):
            for unknown in row.indices.tolist():
                if unknown in self.missing:
                    self._coded.setdefault(unknown, []).append(item)
                    item.open_blocks += 1

    def _found(self, unknown: int) -> None:
        if unknown not in self.missing:
            return
        self.missing.remove(unknown)
        self._cover(unknown)
        for item in self._coded.pop(unknown, ()):
            item.open_blocks -= 1
            self._weigh(item)

    def _cover(self, unknown: int) -> None:
        missing = unknown in self.missing
        prompt, late = self._prompt.get(unknown, 0), self._late.get(unknown, 0)
        _put(self.promised, unknown, missing and prompt > 0)
        _put(self.uncovered, unknown, missing and late > 0 and prompt == 0)

    def _weigh(self, item: Item) -> None:
        alive = item.open_blocks > 0 and (item.done or item.prompt > 0)
        now = min(len(item.assignment.outputs), item.open_blocks) if alive else 0
        self.helping += now - item.helps
        item.helps = now


def direct_unknown(assignment: Assignment) -> int | None:
    """The unknown that the task delivers by itself (up to a factor), or None."""
    if assignment.systematic is not None:
        return assignment.systematic
    a, b = assignment.a, assignment.b
    if len(a) == len(b) == len(assignment.outputs) == 1 and a[0].degree == b[0].degree == 1:
        return int(a[0].indices[0]) * assignment.unknowns_b + int(b[0].indices[0])
    return None


def direct_task(code: Code, number: int, unknown: int) -> Assignment:
    """Task `number` that computes this unknown product itself."""
    ia, jb = divmod(unknown, code.grid.chunks_b)
    return Assignment.pair(number, Combination.unit(ia), Combination.unit(jb), code.grid.chunks_b)


def leading_blocks(code: Code, wanted: Sequence[int] | set[int]) -> int:
    """Number of leading fixed tasks that are exactly the wanted unknowns themselves; 0 when they are not."""
    count = len(wanted)
    if code.systematic == count:
        return count
    if count > code.P:
        return 0
    found = set()
    for index in range(count):
        unknown = direct_unknown(code.task(index))
        if unknown is None:
            return 0
        found.add(unknown)
    return count if found == set(wanted) else 0


def _put(group: set[int], element: int, inside: bool) -> None:
    if inside:
        group.add(element)
    else:
        group.discard(element)
