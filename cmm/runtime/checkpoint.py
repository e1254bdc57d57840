"""A checkpoint: the folder in which a job keeps its plan's identity and every result that it accepts.

    plan.json     the job's identity, readable; written once, by rename
    results       the results, appended (records.py)
    delivering    there while C is being put in its place, so that a job that dies then knows its own C
    lock          held while a job uses the folder; released by the system when the process ends

A result is in the system's hands before the job counts it, so the end of the process loses nothing that was accepted;
a thread syncs the file now and then, which bounds what a power cut can lose. When the disk is full, saving ends and the
job goes on. No MPI here.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cmm.core.errors import InUseError, OutputError
from cmm.core.task import Array
from cmm.matrices.files import write_atomic
from cmm.runtime import records
from cmm.runtime.records import Form, Results, Saved

PLAN, RESULTS, DELIVERING, LOCK = "plan.json", "results", "delivering", "lock"
OURS = frozenset({PLAN, RESULTS, DELIVERING, LOCK})
LOCK_SECONDS = 10.0  # a requeued job waits so long for its dying predecessor
LONGEST_PLAN = 1 << 20  # bytes
ARGUMENT = "--checkpoint"


class Checkpoint:
    """The folder, held by this process from the beginning.

    Parameters
    ----------
    folder : made, for this user alone, where it does not exist yet
    resume : go on from what is in it
    every : seconds between two syncs; 0: after every result
    warn, tell : told what the user should know

    Attributes
    ----------
    plan : of the earlier run: {identity, id, begun, host, out}; None when the checkpoint is new, or not readable
    fresh : there was nothing in it
    begun : when (UTC, ISO 8601), as far as that is known
    restored, written, bytes : results taken over, results and bytes written

    Raises
    ------
    OutputError : not empty without `resume`, not writable, or holding other files
    InUseError : used by another job
    """

    def __init__(self, folder: str, *, resume: bool, every: float = 5.0,
                 warn: Callable[[str], None] = lambda text: None,
                 tell: Callable[[str], None] = lambda text: None) -> None:  # fmt: skip
        self.folder, self.resume, self.every, self.warn, self.tell = Path(folder), resume, every, warn, tell
        self.plan: dict[str, Any] | None = None
        self.form: Form | None = None
        self.restored = self.written = self.bytes = 0
        self.begun = ""
        self.saving, self.fresh = False, True
        self._end = 0
        self._fd = -1
        self._syncer: _Syncer | None = None
        self._lock = self._hold()
        try:
            self._look()
        except BaseException:
            self.close()
            raise

    # ---- the folder ------------------------------------------------------------------------------------------

    def _hold(self) -> int:
        """Make the folder and take its lock; returns the lock's descriptor."""
        try:
            self._make()
            self._refuse_foreign()
            until = time.monotonic() + (LOCK_SECONDS if self.resume else 0.0)
            while (lock := self._locked()) is None:
                if time.monotonic() > until:
                    raise InUseError(ARGUMENT, "must not be in use by another job", self.folder,
                                      "Wait for that job, or name another folder.")  # fmt: skip
                time.sleep(0.05)
        except OSError as error:
            raise _not_writable(self.folder, error) from error
        return lock

    def _make(self) -> None:
        with contextlib.suppress(FileExistsError):
            self.folder.mkdir(mode=0o700)
        if not self.folder.is_dir():
            raise OutputError(ARGUMENT, "must name a folder", f"the file {self.folder}", "Choose another name.")

    def _locked(self) -> int | None:
        """The lock's descriptor; None while another job has it, and when that job has just taken the folder away."""
        try:
            return _locked(self.folder / LOCK)
        except FileNotFoundError:
            self._make()
            return None

    def _refuse_foreign(self) -> None:
        """A folder with files but no checkpoint is somebody else's; beside a checkpoint they do no harm."""
        names = set(os.listdir(self.folder))
        strange = sorted(name for name in names - OURS if not name.startswith((".cmm-", ".nfs")))
        if strange and not names & {PLAN, RESULTS}:
            raise OutputError(ARGUMENT, "must name a new or empty folder, or a checkpoint of cmm",
                              f"{self.folder}, which holds {strange[0]}", "Choose another name.")  # fmt: skip
        for name in sorted(names & OURS):
            if not stat.S_ISREG(os.lstat(self.folder / name).st_mode):  # a link leads to what is not ours
                raise OutputError(ARGUMENT, "must hold its files itself",
                                  f"{self.folder / name}, which is no regular file",
                                  "Put the file itself there, or choose another folder.")  # fmt: skip

    def _look(self) -> None:
        """Judge what is there."""
        self.fresh = not set(os.listdir(self.folder)) & {PLAN, RESULTS}
        if self.fresh:
            return
        if not self.resume:
            raise OutputError(ARGUMENT, "must be new or empty without --resume", f"{self.folder}, which holds results",
                              "Pass --resume to go on from them, or remove the folder.")  # fmt: skip
        self.plan = _read_plan(self.folder / PLAN)
        if self.plan is None:
            self.warn(f"{self.folder / PLAN} is missing or damaged; results that belong to this job are used all the "
                      "same")  # fmt: skip

    def delivering(self) -> str | None:
        """The output that the earlier run was putting in its place when it ended, or None."""
        try:
            return os.fsdecode((self.folder / DELIVERING).read_bytes()) or None
        except OSError:
            return None

    # ---- a run -----------------------------------------------------------------------------------------------

    def begin(self, identity: Mapping[str, Any], form: Form, **about: Any) -> None:
        """Keep the plan, unless it is there, and open the results. Raises OutputError.

        identity : JSON-ready; a plan that is there has the same
        about : what else plan.json is to say
        """
        self.form = form
        now = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            if self.plan is None:
                table = {"identity": identity, "id": form.plan.hex(), "begun": now, "host": socket.gethostname()}
                write_atomic(self.folder / PLAN, json.dumps({**table, **about}, indent=2) + "\n", argument=ARGUMENT)
            self.begun = now if self.fresh else "unknown" if self.plan is None else str(self.plan["begun"])
            self._fd = os.open(self.folder / RESULTS, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                raise OSError(errno.EINVAL, "results is no regular file")
            for place in (self.folder, self.folder.parent):
                _sync_folder(place)
        except OSError as error:
            raise _not_writable(self.folder, error) from error

    def check_room(self, need: int) -> None:
        """Raise OutputError when `need` bytes of results do not fit, those included that are there."""
        try:
            free = shutil.disk_usage(self.folder).free
            have = os.stat(self.folder / RESULTS).st_size if (self.folder / RESULTS).exists() else 0
        except OSError as error:
            raise _not_writable(self.folder, error) from error
        if need - have > free:
            raise OutputError(ARGUMENT, f"needs {need - have} bytes on its file system", f"{free} free",
                              "Make room for it, or name a folder elsewhere.")  # fmt: skip

    def saved(self) -> Iterator[tuple[Saved, list[Array]]]:
        """The results that are there, blocks valid until the next step. What is of no use is told and cut off."""
        assert self.form is not None, "begun"
        found = Results(self._fd, self.form)
        try:
            yield from found
            if trouble := found.report():
                self.warn(f"{self.folder / RESULTS}: {' and '.join(trouble)} not used")
            os.ftruncate(self._fd, found.end)
        except OSError as error:
            raise _not_writable(self.folder, error) from error
        self._end = found.end

    def start(self) -> None:
        """From now on results are saved. `restored` is known."""
        if self.restored:
            self.tell(f"{self.restored} results of an earlier run, begun {self.begun}, are there")
        self.saving = True
        self._syncer = _Syncer(self._fd, self.every)

    def save(self, saved: Saved, blocks: Sequence[Array]) -> None:
        """Append a result. When that fails the file is as it was, the user is told, and nothing is saved any more."""
        if not self.saving or self._syncer is None or self.form is None:
            return
        try:
            end = records.append(self._fd, self._end, self.form, saved, blocks)
            self.written, self.bytes, self._end = self.written + 1, self.bytes + end - self._end, end
            self._syncer.note()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.saving = False
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, self._end)
        self.warn(f"no further results are saved in {self.folder} ({error.strerror or error}); the job goes on, and "
                  f"{self.kept} results are kept")  # fmt: skip

    @property
    def kept(self) -> int:
        """Results that a later run can use."""
        return self.restored + self.written

    # ---- the end ---------------------------------------------------------------------------------------------

    def deliver(self, out: str) -> None:
        """C is about to be put in its place."""
        with contextlib.suppress(OutputError):  # only needed when the job dies within the next moments
            write_atomic(self.folder / DELIVERING, os.fsencode(out), argument=ARGUMENT)

    def finish(self, *, sync: bool = True) -> None:
        """Save no more, and sync, unless nobody will need it. May be called twice."""
        syncer, self._syncer, self.saving = self._syncer, None, False
        if syncer is not None:
            try:
                syncer.stop(sync)
            except OSError as error:
                self.warn(f"the results in {self.folder} may not be on disk ({error.strerror or error})")

    def close(self) -> None:
        """Finish, and let the folder go. May be called twice."""
        self.finish()
        for descriptor in (self._fd, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._fd = self._lock = -1

    def remove(self) -> None:
        """The job is done: take away what is ours, and the folder when nothing else is in it."""
        held, self._lock = self._lock, -1
        self.close()
        left = [path.name for path in self.folder.glob(".cmm-*.tmp")]  # of a plan that was never finished
        for name in (*sorted(OURS - {LOCK}), *left, LOCK):
            with contextlib.suppress(OSError):
                os.unlink(self.folder / name)
        with contextlib.suppress(OSError):
            self.folder.rmdir()
        if held >= 0:
            os.close(held)


class _Syncer:
    """A thread that syncs a file every so many seconds when something was written."""

    def __init__(self, fd: int, every: float) -> None:
        self.fd, self.every = fd, every
        self.dirty, self.ending = threading.Event(), threading.Event()
        self.failure: OSError | None = None
        self.thread = threading.Thread(target=self._run, name="cmm-checkpoint", daemon=True)
        if every > 0:
            self.thread.start()

    def note(self) -> None:
        """Something was written. Raises the OSError of an earlier sync."""
        if self.failure is not None:
            raise self.failure
        self.dirty.set()
        if self.every <= 0:
            self._sync()

    def _run(self) -> None:
        while not self.ending.wait(self.every):
            try:
                self._sync()
            except OSError as error:
                self.failure = error
                return

    def _sync(self) -> None:
        if self.dirty.is_set():
            self.dirty.clear()
            os.fdatasync(self.fd)

    def stop(self, sync: bool) -> None:
        """The end, with a last sync or without. Raises OSError."""
        self.ending.set()
        if self.thread.is_alive() and sync:  # otherwise it ends when it likes
            self.thread.join()
        if self.failure is not None:
            raise self.failure
        if sync:
            self._sync()


# ---- identities --------------------------------------------------------------------------------------------------


def identity_digest(identity: Mapping[str, Any]) -> bytes:
    """16 bytes that stand for an identity."""
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _read_plan(path: Path) -> dict[str, Any] | None:
    """The plan; None when it is not there, or not as it was written."""
    try:
        with path.open("rb") as file:
            table = json.loads(file.read(LONGEST_PLAN))
        right = identity_digest(table["identity"]).hex() == table["id"] and isinstance(table["begun"], str)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return table if right and isinstance(table["identity"], dict) else None


def _locked(path: Path) -> int | None:
    """A descriptor of the lock file, locked; None while another process holds it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held = os.fstat(fd)
        if os.path.samestat(held, os.stat(path)):  # otherwise its holder has removed it meanwhile
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):  # a file system without locks
            return fd
        os.close(fd)
        raise
    os.close(fd)
    return None


def _sync_folder(folder: Path) -> None:
    """Make the names in it durable, where the file system can."""
    with contextlib.suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _not_writable(folder: Path, error: OSError) -> OutputError:
    if isinstance(error, FileNotFoundError):
        return OutputError(ARGUMENT, "must lie in an existing directory", folder, f"Create {folder.parent} first.")
    return OutputError(ARGUMENT, "must be a folder that can be written to", f"{folder} ({error.strerror or error})",
                       "Make room or choose another place.")  # fmt: skip
