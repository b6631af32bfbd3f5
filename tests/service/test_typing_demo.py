"""Search while someone types on the demo bundle: what the last word is completed to, and what is found."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from lightretriever import Bundle, SearchEngine
from lightretriever.service.commands.serve import unpack_demo
from lightretriever.service.schemas import SearchRequest, SearchResponse
from lightretriever.service.settings import Settings
from tests.service.process import ROOT

pytestmark = pytest.mark.slow

QUERIES = [json.loads(line) for line in (ROOT / "demo" / "queries.jsonl").read_text().splitlines()]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SHORTEST = 5  # letters of a word that is cut


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchEngine]:
    path: Path = unpack_demo(tmp_path_factory.mktemp("demo") / "bundle")
    with SearchEngine.open(Bundle.open(path), Settings(deadline_ms=60_000, warm_up_queries=1)) as engine:
        yield engine


def typed(engine: SearchEngine, query: str) -> SearchResponse:
    return engine.search(SearchRequest(query=query, prefix=True, fields=[]))


def ids(answer: SearchResponse) -> list[str]:
    return [hit.id for hit in answer.hits]


def shared(one: Sequence[str], other: Sequence[str]) -> float:
    return len({*one} & {*other}) / 10


def test_three_letters_find_most_of_what_the_word_finds(engine: SearchEngine) -> None:
    """A word of each query, cut to three letters, finds most of the ten documents that the whole word finds; the most
    frequent word of the corpus that begins so finds fewer."""
    found, by_frequency = [], []
    spellings = engine.parts.backends.spellings
    assert spellings is not None
    for query in (one["query"].split() for one in QUERIES):
        for place, word in enumerate(query):
            if place == 0 or len(word) < SHORTEST:
                continue
            before = " ".join(query[:place])
            whole = ids(engine.search(SearchRequest(query=f"{before} {word}", fields=[])))
            found.append(shared(ids(typed(engine, f"{before} {word[:3]}")), whole))
            ((frequent, _),) = spellings.completions(word[:3], 1)
            answer = engine.search(SearchRequest(query=f"{before} {frequent}", fields=[]))
            by_frequency.append(shared(ids(answer), whole))
    mean, alone = sum(found) / len(found), sum(by_frequency) / len(by_frequency)
    assert len(found) > 50
    assert mean > 0.7
    assert mean > alone + 0.05, (mean, alone)


def test_three_letters_are_rarely_corrected_to_another_word(engine: SearchEngine) -> None:
    """Of words of three and four letters that one in 200 documents has, with two neighbours swapped or a letter left
    out, many are corrected and few wrongly; with another letter, almost none are."""
    spellings, tokenizer = engine.parts.backends.spellings, engine.parts.encoder.tokenizer
    assert spellings is not None
    least = engine.bundle.manifest.documents / 200
    found = [one for first in LETTERS for second in LETTERS for one in spellings.completions(first + second, 1000)]
    words = {word for word, documents in found if documents >= least and word.isalpha() and len(word) in (3, 4)}
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
