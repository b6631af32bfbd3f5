"""kill -9 of a process that writes to a journal, at any moment: what it acknowledged is there, and nothing in part."""

import json
import random
from collections import Counter
from contextlib import suppress
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock, Thread
from time import perf_counter, sleep

import numpy as np
import orjson
import pytest

from lightretriever.artifacts.bundle.manifest import read_manifest
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.live import journal as journals
from lightretriever.artifacts.live.journal import Journal, Record
from tests.faults.commands import FORKS
from tests.faults.conftest import Figure

pytestmark = pytest.mark.slow


def write(bundle: Path, folder: Path, name: str, told: "Connection[str, str]") -> None:
    """Write groups of records with three threads, and tell each group that was acknowledged, until it is killed."""
    vars(journals)["_LOG_BYTES"] = 100_000  # the log is written back often
    manifest, telling = read_manifest(bundle), Lock()

    def tell(text: str) -> None:
        with telling:
            told.send(text)

    def one(thread: int) -> None:
        journal, chance = Journal(folder, manifest), random.Random(f"{name}-{thread}")
        for number in count():
            size = chance.choice([1, 1, 5, 200])
            group = f"{name}-{thread}-{number}"
            vector = np.full(manifest.dimension, manifest.dimension**-0.5, np.float32)
            ids = [f"{group}/{place}/{size}" for place in range(size)]
            raws = (orjson.dumps({"_id": one, "text": chance.randint(1, 200) * f"{one} "}) for one in ids)
            records = [Record(one, raw, vector, {"w": 7}) for one, raw in zip(ids, raws, strict=True)]
            with journal.writing(perf_counter() + 60), journal.appending(records):
                pass
            tell(group)

    threads = [Thread(target=one, args=(thread,)) for thread in range(3)]
    for thread in threads:
        thread.start()
    tell("ready")


def killed(bundle: Bundle, folder: Path, name: str, after_s: float) -> set[str]:
    """Start a writer, kill it some time after it is ready, and give the groups that it acknowledged."""
    listening, told = FORKS.Pipe(duplex=False)
    writer = FORKS.Process(target=write, args=(bundle.path, folder, name, told))
    writer.start()
    told.close()
    said = [listening.recv()]
    sleep(after_s)
    writer.kill()
    with suppress(EOFError):
        while True:
            said.append(listening.recv())
    writer.join()
    listening.close()
    return set(said) - {"ready"}


def groups_of(records: list[Record]) -> dict[str, int]:
    """Count the records of each group, and check that each group is whole."""
    found = Counter[str]()
    for record in records:
        group, _, size = record.id.split("/")
        found[group] += 1
        assert record.raw is not None
        assert set(json.loads(record.raw)["text"].split()) == {record.id}
        assert int(size) in (1, 5, 200)
    for record in records:
        group, _, size = record.id.split("/")
        assert found[group] == int(size), group
    return found


def test_a_killed_writer_loses_nothing_and_leaves_nothing_in_part(
    full: bool, figure: Figure, tiny_bundle: Bundle, tmp_path: Path
) -> None:
    kills, chance, acknowledged, lost = 1000 if full else 10, random.Random(4), 0, 0
    for kill in range(kills):
        folder = tmp_path / f"live-{kill // 10}"  # ten kills one after the other on each journal
        told = killed(tiny_bundle, folder, str(kill), chance.uniform(0, 0.15))
        with Journal(folder, tiny_bundle.manifest) as journal, journal.writing(perf_counter() + 60) as records:
            found = groups_of(records)
        acknowledged += len(told)
        lost += len(told - found.keys())
        assert lost == 0, told - found.keys()
    assert acknowledged > kills
    figure("live_acknowledged_lost", lost, "writes", kills=kills, acknowledged=acknowledged)
