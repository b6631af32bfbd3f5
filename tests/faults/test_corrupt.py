"""Damaged bundles: refused with the name of the file, or proven harmless. Never served, and never a crash."""

import faulthandler
import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import pytest

from lightretriever.artifacts.bundle.manifest import MANIFEST_FILE
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import LightRetrieverError
from lightretriever.service.collections.collections import EngineHolder
from lightretriever.service.errors import ServiceError
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from tests.faults.conftest import Figure
from tests.support.tiny import make_tiny_bundle, tiny_documents

SETTINGS: Final = Settings(deadline_ms=20_000, warm_up_queries=2, search_threads=2)
QUERIES: Final = ("play music from the terminal", "papers", "日本語", "naïve façade 🎵", "doc", "over the network")
_HANGS_S: Final = 120.0


def answers(engine: SearchEngine) -> str:
    """A digest of all that the bundle answers, times left out. An error is an answer too."""
    found: list[Any] = []
    fields = {"query": QUERIES, "mode": engine.reader.modes, "task": engine.bundle.manifest.tasks}
    for values in product(*fields.values()):
        request = SearchRequest.model_validate({"k": 30, **dict(zip(fields, values, strict=True))})
        try:
            found.append(engine.search(request).model_dump(mode="json", exclude={"timings_ms"}))
        except ServiceError as error:
            found.append(error.kind)
    for document in tiny_documents():
        try:
            found.append(engine.document(document.id).fields)
        except ServiceError as error:
            found.append(error.kind)
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def outcome(how: str, path: Path) -> tuple[str, str]:
    """What comes of opening a bundle, warming it up, and asking it, in a word and in more of them. What hangs is a
    crash."""
    faulthandler.dump_traceback_later(_HANGS_S, exit=True)
    try:
        if how == "served":
            with EngineHolder.open(path, SETTINGS) as serving:
                serving.engine.warm_up()
                return "answers", answers(serving.engine)
        with SearchEngine.open(Bundle.open(path), SETTINGS) as engine:
            engine.warm_up()
            return "answers", answers(engine)
    except (LightRetrieverError, ServiceError) as error:
        return "refused", str(error)
    except Exception as error:  # a mistake of ours: the test tells of it
        return "mistake", f"{type(error).__name__}: {error}"
    finally:
        faulthandler.cancel_dump_traceback_later()


class Opener:
    """Opens bundles in a process of its own, which is started again when one of them ended it."""

    def __init__(self) -> None:
        self._pool = self._started()

    def _started(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(1, get_context("spawn"), initializer=faulthandler.enable)

    def open(self, how: str, bundle: Path) -> tuple[str, str]:
        """Open a bundle as the server does (`served`), or without reading the files first (`unhashed`). What came of
        it: `refused` with the message, `answers` with a digest, `mistake`, or `crashed`."""
        try:
            return self._pool.submit(outcome, how, bundle).result()
        except BrokenProcessPool:
            self._pool = self._started()
            return "crashed", "see stderr"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()


SEED = 20_260
Random = np.random.Generator


def flipped(content: bytes, _: bytes, random: Random) -> bytes:
    changed = bytearray(content)
    changed[random.integers(len(changed))] ^= 1 << int(random.integers(8))
    return bytes(changed)


def zeroed(content: bytes, _: bytes, random: Random) -> bytes:
    size = int(random.integers(1, max(2, len(content) // 2)))
    start = int(random.integers(len(content)))
    return content[:start] + bytes(len(content[start : start + size])) + content[start + size :]


#: What becomes of a file, by its content and that of the same file in another bundle; None: it is deleted.
KINDS: dict[str, Callable[[bytes, bytes, Random], bytes | None]] = {
    "truncated": lambda content, _, random: content[: random.integers(1, len(content))] if len(content) > 1 else b"",
    "a bit flipped": flipped,
    "a block zeroed": zeroed,
    "emptied": lambda *_: b"",
    "deleted": lambda *_: None,
    "appended to": lambda content, _, random: content + random.bytes(int(random.integers(1, 4096))),
    "of another bundle": lambda _, other, __: other,
}


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two bundles with every kind of file there is, of the same names."""
    folder = tmp_path_factory.mktemp("pair")
    every: dict[str, Any] = {"table_dtype": "int8", "idf": True, "layout": "codes"}
    return [make_tiny_bundle(folder / str(seed), seed=seed, **every).path for seed in (7, 8)]


def cases(bundle: Path, count: int) -> list[tuple[str, str]]:
    """Files, and kinds of damage: every file comes before one comes again, and every kind of it before one comes
    again."""
    files = sorted([MANIFEST_FILE, *Bundle.open(bundle).manifest.files])
    places = (divmod(number, len(files)) for number in range(count))
    return [(files[place], list(KINDS)[(turn + place) % len(KINDS)]) for turn, place in places]


def test_no_damaged_bundle_is_served(bundles: list[Path], tmp_path: Path, full: bool, figure: Figure) -> None:
    random, damaged, (bundle, other) = np.random.default_rng(SEED), tmp_path / "damaged", bundles
    drawn = cases(bundle, 200 if full else 30)
    assert {file for file, _ in drawn} == {MANIFEST_FILE, *Bundle.open(bundle).manifest.files}
    refused, unhashed, served = 0, Counter[str](), []
    with Opener() as opener:
        kind, right = opener.open("served", bundle)
        assert kind == "answers", right
        for case in drawn:
            file, how = case
            content = (bundle / file).read_bytes()
            changed = KINDS[how](content, (other / file).read_bytes(), random)
            shutil.rmtree(damaged, ignore_errors=True)
            shutil.copytree(bundle, damaged)
            (damaged / file).unlink()
            if changed is not None:
                (damaged / file).write_bytes(changed)
            kind, words = opener.open("served", damaged)
            if kind == "refused":
                refused += 1
                assert file in words or case == (MANIFEST_FILE, "of another bundle"), (case, words)
            elif (kind, words) != ("answers", right):
                served.append((case, kind, words))
            assert kind == "refused" or changed == content or file == MANIFEST_FILE, case
            kind, words = opener.open("unhashed", damaged)
            unhashed["other answers" if kind == "answers" and words != right else kind] += 1
    assert not served
    assert refused > 0.9 * len(drawn)
    assert unhashed["other answers"] > 0, "hashes find nothing that sizes don't"
    figure("corruptions_served", len(served), f"of {len(drawn)}", refused=refused, without_hashes=dict(unhashed))
