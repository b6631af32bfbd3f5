"""How well documents match: by the thresholds of the bundle, in hits, answers and `/info`."""

import shutil
from pathlib import Path

import numpy as np
from fastapi.testclient import TestClient

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.schemas import LegName, Matched
from lightretriever.service.search.answer import LEVELS, matches
from lightretriever.service.search.encoder import QueryEncoder
from lightretriever.service.search.fusion import BOTH, CandidateTable
from tests.service.conftest import SETTINGS
from tests.service.live import client_of
from tests.support.asking import ask
from tests.support.meaning import make_meaningful_bundle
from tests.support.tampering import edit_manifest

NONSENSE = "bababa cefono tesagu"


def test_a_good_query_matches_and_nonsense_does_not(meaning: TestClient) -> None:
    good = ask(meaning, "mend the punctured tyre of a bicycle")
    assert (good["matched"], good["hits"][0]["matched"]) == ("strong", "strong")
    assert good["hits"][-1]["matched"] == "none"
    bad = ask(meaning, NONSENSE)
    assert bad["matched"] == "none"
    assert {hit["matched"] for hit in bad["hits"]} == {"none"}
    assert bad["hits"][0]["score"] == 1.0  # as good as the best, for lack of better ones


def test_a_document_whose_name_the_query_is_matches_strongly(meaningful_bundle: Bundle, tmp_path: Path) -> None:
    folder = tmp_path / "strict"
    shutil.copytree(meaningful_bundle.path, folder)
    edit_manifest(folder, lambda manifest: manifest["tasks"]["search"]["match"].update(strong=1.01))
    with client_of(Bundle.open(folder), SETTINGS) as client:
        title = ask(client, "bicycle")["hits"][0]["fields"]["title"]
        assert ask(client, f"{title} bicycle")["matched"] != "strong"
        answer = ask(client, title)
        assert [hit["matched"] == "strong" for hit in answer["hits"][:2]] == [True, False]
        assert (answer["hits"][0]["fields"]["title"], answer["matched"]) == (title, "strong")


def test_the_thresholds_are_those_of_the_bundle(meaning: TestClient, meaningful_bundle: Bundle) -> None:
    match = meaningful_bundle.manifest.tasks["search"].match
    assert match is not None
    assert meaning.get("/info").json()["matched"] == {"search": match.model_dump()}
    for query in ("bicycle", "honey in summer", "mountains and ripe cheeses", NONSENSE):
        answer = ask(meaning, query, candidates=10)
        of_dense = ask(meaning, query, candidates=10, mode="dense")
        for one in (answer, of_dense):
            assert one["matched"] == max((hit["matched"] for hit in one["hits"]), key=LEVELS.index)
        bands = {}
        for hit in of_dense["hits"]:
            score = hit["dense"]["score"]
            bands[hit["id"]] = "strong" if score >= match.strong else "weak" if score >= match.weak else "none"
            assert hit["matched"] == bands[hit["id"]]
        for hit in answer["hits"]:  # which the words make worse only
            assert LEVELS.index(hit["matched"]) <= LEVELS.index(bands[hit["id"]])


def levels(
    bundle: Bundle, query: str, dense: list[float], sparse: list[list[float]], *legs: LegName, terms: bool = True
) -> list[Matched | None]:
    """The levels of candidates whose dense scores lie between the thresholds weak, 0, and strong, 1, and whose terms
    have these shares of the sparse score."""
    match = bundle.manifest.tasks["search"].match
    assert match is not None
    shares = np.array(sparse, np.float32)
    scores = np.array([match.weak + np.array(dense) * (match.strong - match.weak), shares.sum(axis=1)])
    table = CandidateTable(np.arange(len(dense)) * 3, scores, np.zeros(scores.shape, np.int64), legs or BOTH)
    tokenizer = bundle.tokenizer()
    vocabulary = bundle.vocabulary(tokenizer) if terms else None
    encoder = QueryEncoder(tokenizer, {"search": bundle.table("search")}, vocabulary)
    found = matches(match, query, table, encoder, shares, shares.max(axis=0))
    assert found is not None
    return [None if level < 0 else LEVELS[level] for level in found.tolist()]


def test_without_a_word_of_the_query_in_any_document_less_matches(meaningful_bundle: Bundle) -> None:
    """Nor is a word that the tokenizer lacks in one. Where terms are tokens, or no words were searched, the dense score
    alone decides."""
    for query, share, level in (
        ("bababa", 0.5, "none"),
        ("the bababa", 1.1, "weak"),
        ("xkjdh", 1.1, "none"),
        ("the xkjdh", 1.1, "none"),
    ):
        scores = [share, 0.0], [[0.0], [0.0]]
        assert levels(meaningful_bundle, query, *scores) == [level, "none"]
        alone = ["strong" if share >= 1 else "weak", "weak"]
        assert levels(meaningful_bundle, query, *scores, terms=False) == alone
        assert levels(meaningful_bundle, query, *scores, "dense") == alone


def test_a_strong_match_has_the_rare_words_of_the_query(meaningful_bundle: Bundle) -> None:
    near, impacts = [1.0, 1.0, 1.0, 0.5], [[30.0, 0.0], [0.0, 90.0], [20.0, 10.0], [30.0, 90.0]]
    assert levels(meaningful_bundle, "the bababa cefono", near, impacts) == ["weak", "strong", "weak", "weak"]
    # A word that no candidate has counts as much as the rarest that one has.
    without = [[*row, 0.0] for row in impacts]
    assert levels(meaningful_bundle, "bababa cefono tesagu", near, without) == ["weak", "weak", "weak", "weak"]
    # The nearer the document, the fewer words it needs.
    assert levels(meaningful_bundle, "bababa cefono tesagu", [9.0, 9.0, 9.0, 9.0], without)[1] == "strong"


def test_a_candidate_without_a_dense_score_has_no_level(meaningful_bundle: Bundle) -> None:
    found = levels(meaningful_bundle, "bababa", [1.0, np.nan], [[9.0], [9.0]])
    assert found == ["strong", None]


def test_every_page_of_a_search_says_the_same(meaning: TestClient) -> None:
    pages = [
        ask(meaning, "harvest honey in summer on warm days", k=1, offset=offset, candidates=10) for offset in range(5)
    ]
    assert {page["matched"] for page in pages} == {"strong"}
    assert len({page["hits"][0]["matched"] for page in pages}) > 1


def test_an_answer_says_why_it_is_not_judged(meaning: TestClient, client: TestClient) -> None:
    words_alone = {"fusion": {"method": "linear", "weights": {"dense": 0, "sparse": 1}}}
    for service, query, fields, reason in (
        (meaning, "bicycle", {"mode": "sparse"}, "the dense leg is not searched"),
        (meaning, "bicycle", words_alone, "the dense leg is not searched"),
        (meaning, "bicycling", {}, "no tokens of the dense leg"),
        (client, "music", {}, "no thresholds"),
    ):
        answer = ask(service, query, **fields)
        assert answer["hits"]
        assert "matched" not in answer
        assert reason in answer["unjudged"]
        assert not any("matched" in hit for hit in answer["hits"])
    info = client.get("/info").json()
    assert not {"matched", "spelling"} & info.keys()
    assert info["filters"] == {}


def test_coverage_counts_tokens_where_the_terms_are_tokens(tmp_path: Path) -> None:
    bundle = make_meaningful_bundle(tmp_path / "bare", vocabulary="tokens")
    with client_of(bundle, SETTINGS) as client:
        answer = ask(client, "bicycle bababa", explain=True)
        assert answer["hits"][0]["explanation"]["coverage"] == 0.5
        assert answer["matched"] in ("weak", "strong")
