"""A copy of a journal put in its place."""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from lightretriever.artifacts.errors import JournalError
from lightretriever.artifacts.files.atomic import sync, writing
from lightretriever.artifacts.live.followers import in_use
from lightretriever.artifacts.live.journal import Journal
from lightretriever.artifacts.live.stamp import DATABASE, FORMER, LOGS, STAMP

_READ = 4096  # changes that are checked at a time


def restore(copy: Path, folder: Path) -> tuple[int, Path | None]:
    """Put a copy of a journal, with the log beside it if there is one, in place of the journal in a folder, whose
    processes have ended. Return the number of the copy's last change, and where the former journal's files are now,
    None if there were none.

    JournalError for a copy that is no whole journal, which leaves the folder as it is, and for a folder in use;
    DiskError.
    """
    if not copy.is_file():
        raise JournalError(f"{copy}: there is no such file.", remedy="Give the file that a backup made.")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp("", "restore-", folder))
    try:
        with writing(scratch):
            shutil.copyfile(copy, scratch / DATABASE)
            if (log := copy.with_name(f"{copy.name}-wal")).is_file():
                shutil.copyfile(log, scratch / LOGS[0])
        with Journal(scratch, None, begin=False) as journal:
            while journal.read(_READ):
                pass
            with journal.writing(0.0):  # compares the number of the last change
                sequence = journal.sequence
        with writing(folder):
            return sequence, _swap(scratch / DATABASE, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _swap(database: Path, folder: Path) -> Path | None:
    """Put a database in place of a folder's, whose files get a folder of their own."""
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if in_use(folder):
            raise JournalError(f"{folder}: a process has the journal open.", remedy="Stop the service first.")
        former = [folder / name for name in (DATABASE, *LOGS, STAMP) if (folder / name).exists()]
        kept = Path(tempfile.mkdtemp("", FORMER, folder)) if former else None
        for path in former:
            path.rename(kept / path.name if kept else path)
        database.rename(folder / DATABASE)
        for path in filter(None, (folder, kept)):
            sync(path)
        return kept
    finally:
        os.close(lock)
