"""The demo: its bundle is sound, small, and gives the answer that the README shows; what a word of it is completed to;
how its archive and its corpus are made."""

import gzip
import json
import os
import re
import tarfile
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from string import ascii_lowercase

import pytest

from demo import demo_corpus
from demo.pack import pack
from lightretriever.artifacts.bundle.reader import Bundle, unpack
from lightretriever.artifacts.bundle.verify import verify_bundle
from lightretriever.artifacts.errors import BundleError
from lightretriever.service.commands.serve import ARCHIVE, EXAMPLE, unpack_demo
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from research.quality import demo_queries
from tests.support.asking import agree
from tests.support.wordings import raises

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield unpack_demo(None)


@pytest.fixture(scope="module")
def engine(bundle: Path) -> Iterator[SearchEngine]:
    with SearchEngine.open(Bundle.open(bundle), Settings(deadline_ms=60_000)) as engine:
        yield engine


def test_the_bundle_is_sound_small_and_unpacked_to_the_cache_once(bundle: Path) -> None:
    assert verify_bundle(bundle) == []
    assert ARCHIVE.stat().st_size < 40_000_000
    assert bundle.parts[-2:] == ("lightretriever", "demo")
    before = bundle.stat().st_ino
    assert unpack_demo(None).stat().st_ino == before


def test_its_documents_may_be_shipped(bundle: Path) -> None:
    manifest = Bundle.open(bundle).manifest
    assert manifest.corpus.name == "debian-package-descriptions"
    assert manifest.model.licence == "Apache-2.0"
    assert manifest.sparse.impacts == "bm25", "then the README's words on the demo need another look"


def test_letters_typed_at_random_match_nothing(engine: SearchEngine) -> None:
    queries = {"asdkjh sdkjfhk": "none", "qqqq": "none", "the qqqq": "none", "play music": "strong", "git": "strong"}
    assert {query: engine.search(SearchRequest(query=query)).matched for query in queries} == queries


def test_expected_packages_are_found_as_often_as_recorded(bundle: Path) -> None:
    queries = demo_queries.read_queries()
    assert (len(queries), sum(query["kept_apart"] for query in queries)) == (30, 20)
    documents = Bundle.open(bundle)
    with documents.sparse() as index:
        assert [one for query in queries for one in query["expected"] if index.ordinal(one) is None] == []
    recorded = json.loads((ROOT / "docs" / "results" / "demo-queries.json").read_text(encoding="utf-8"))
    found = demo_queries.measure(bundle, queries)
    for group in ("looked at", "kept apart"):
        assert found[group] == recorded[group]


def test_the_readme_shows_its_answer(engine: SearchEngine) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"^```json\n(.*?)^```", readme, flags=re.MULTILINE | re.DOTALL)
    assert shown is not None
    expected = json.loads(shown[1])
    request = {**json.loads(EXAMPLE), "k": 2, "fields": ["title"]}
    assert EXAMPLE in readme
    found = engine.search(SearchRequest(**request)).model_dump(mode="json")
    assert set(found.pop("timings_ms")) == set(expected.pop("timings_ms"))
    agree(found, expected, 1e-4)


SHORTEST = 5  # letters of a word that is cut


def found(engine: SearchEngine, query: str, *, prefix: bool = False) -> set[str]:
    return {hit.id for hit in engine.search(SearchRequest(query=query, prefix=prefix, fields=[])).hits}


@pytest.mark.slow
def test_three_letters_find_most_of_what_the_word_finds(engine: SearchEngine) -> None:
    """A word of each query, cut to three letters, finds most of the ten documents that the whole word finds; the most
    frequent word of the corpus that begins so finds fewer."""
    typed, by_frequency = [], []
    spellings = engine.parts.backends.spellings
    assert spellings is not None
    for words in (query["query"].split() for query in demo_queries.read_queries()):
        for place, word in enumerate(words):
            if place == 0 or len(word) < SHORTEST:
                continue
            before = " ".join(words[:place])
            whole = found(engine, f"{before} {word}")
            typed.append(len(found(engine, f"{before} {word[:3]}", prefix=True) & whole) / 10)
            ((frequent, _),) = spellings.completions(word[:3], 1)
            by_frequency.append(len(found(engine, f"{before} {frequent}") & whole) / 10)
    mean, alone = sum(typed) / len(typed), sum(by_frequency) / len(by_frequency)
    assert len(typed) > 50
    assert mean > 0.7
    assert mean > alone + 0.05, (mean, alone)


@pytest.mark.slow
def test_three_letters_are_rarely_corrected_to_another_word(engine: SearchEngine) -> None:
    """Of words of three and four letters that one in 200 documents has, with two neighbours swapped or a letter left
    out, many are corrected and few wrongly; with another letter, almost none are."""
    spellings, tokenizer = engine.parts.backends.spellings, engine.parts.encoder.tokenizer
    assert spellings is not None
    least = engine.bundle.manifest.documents / 200
    beginnings = map("".join, product(ascii_lowercase, repeat=2))
    known = [one for beginning in beginnings for one in spellings.completions(beginning, 1000)]
    words = {word for word, documents in known if documents >= least and word.isalpha() and len(word) in (3, 4)}
    slips = {f"{word[0]}{word[2]}{word[1]}": word for word in sorted(words) if len(word) == 3}
    slips |= {word[:at] + word[at + 1 :]: word for word in sorted(words) if len(word) == 4 for at in (1, 2, 3)}
    others = {f"{word[:2]}{letter}": word for word in sorted(words) if len(word) == 3 for letter in "jqxz"}

    def corrected(typed: dict[str, str]) -> list[tuple[str, str]]:
        doubtful = [one for one in typed if len(tokenizer.query_ids(one)) != 1]
        return [(typed[one], better) for one, better in zip(doubtful, spellings.corrections(doubtful), strict=True)]

    changed = [(meant, better) for meant, better in corrected(slips) if better]
    wrong = [pair for pair in changed if pair[0] != pair[1]]
    assert len(changed) > 100
    assert len(wrong) < 0.1 * len(changed), wrong
    replaced = corrected(others)
    assert sum(bool(better) for _, better in replaced) < 0.05 * len(replaced)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "lucene").mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    (folder / "lucene" / "segments_1").write_bytes(bytes(range(256)) * 40)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_unpacks_again_only_when_the_archive_changed(source: Path, tmp_path: Path) -> None:
    archive, target = tmp_path / "bundle.tar.xz", tmp_path / "bundle"
    pack(source, archive)
    before = archive.read_bytes()
    unpack(archive, target)
    for path in source.rglob("*"):
        os.utime(path, (0, 12345))
    pack(source, archive)
    assert archive.read_bytes() == before
    assert not unpack(archive, target)
    (source / "lucene" / "segments_1").rename(source / "lucene" / "segments_2")
    pack(source, archive)
    assert unpack(archive, target)
    assert contents(target) == contents(source)


def cut_off(archive: Path) -> None:
    content = archive.read_bytes()
    archive.write_bytes(content[:-20])  # the end of xz; all members are there


def lead_out(archive: Path) -> None:
    with tarfile.open(archive, "w:xz") as tar:
        tar.addfile(tarfile.TarInfo("good"))
        tar.addfile(tarfile.TarInfo("../out"))


@pytest.mark.parametrize("damage", [cut_off, lead_out])
def test_a_bad_archive_leaves_all_as_it_was(source: Path, tmp_path: Path, damage: Callable[[Path], None]) -> None:
    archive, target = tmp_path / "bundle.tar.xz", tmp_path / "bundle"
    pack(source, archive)
    unpack(archive, target)
    damage(archive)
    before = {path.name for path in tmp_path.iterdir()}
    with raises(BundleError, naming="bundle.tar.xz"):
        unpack(archive, target)
    assert contents(target) == contents(source)
    assert {path.name for path in tmp_path.iterdir()} == before


PACKAGES = """\
Package: mpv
Version: 2
Section: video
Installed-Size: 4711
Description: player
 Section: a line of the description, not of the index

Package: quake
Section: contrib/games

Package: mpv
Version: 1
Section: old
Installed-Size: 1

Package: libmpv2
Section: libs
Installed-Size: 5
"""


def test_programs_of_the_corpus_get_the_facts_that_the_archive_has(tmp_path: Path) -> None:
    corpus, output = tmp_path / "corpus.jsonl", tmp_path / "made" / "corpus.jsonl.gz"
    documents = [{"_id": n, "title": n, "text": f"About {n}."} for n in ("libmpv2", "mpv", "quake", "unknown")]
    corpus.write_text("".join(json.dumps(document) + "\n" for document in documents))
    (tmp_path / "Packages").write_text(PACKAGES)
    demo_corpus.main([str(corpus), str(output), "--packages", str(tmp_path / "Packages")])
    assert [json.loads(line) for line in gzip.decompress(output.read_bytes()).splitlines()] == [
        {"_id": "mpv", "title": "mpv: player", "text": "About mpv.", "section": "video", "installed_kb": 4711},
        {"_id": "quake", "title": "quake", "text": "About quake.", "section": "games"},
        {"_id": "unknown", "title": "unknown", "text": "About unknown."},
    ]
