"""Choosing the legs' weights by judged queries, and comparing hybrid search with BM25 without any."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from lightretriever.artifacts.bundle.manifest import LegWeights
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import CorpusError, RecipeError
from lightretriever.artifacts.evaluation.searching import Fusion
from lightretriever.artifacts.evaluation.tune import Difference, find_known_items, tune_weights, weight_grid
from lightretriever.service.cli import app
from typer.testing import CliRunner

from tests.support.searching import evaluate_bundle, open_searcher
from tests.support.tiny import TinyDocument, english_tokenizer, make_tiny_bundle, tiny_documents

QUERIES = [text for document in tiny_documents(80) if (text := " ".join(document.text.split()[:4]))][:60]

tuned = partial(tune_weights, open_searcher, split="dev")


def write_dev(folder: Path, relevant: Callable[[str], list[str]], count: int = 60) -> Path:
    """A collection whose relevant documents are those that `relevant` gives for a query."""
    (folder / "qrels").mkdir(parents=True)
    queries = "".join(json.dumps({"_id": f"q{n}", "text": text}) + "\n" for n, text in enumerate(QUERIES[:count]))
    (folder / "queries.jsonl").write_text(queries, encoding="utf-8")
    lines = [f"q{n}\t{name}\t1\n" for n, text in enumerate(QUERIES[:count]) for name in relevant(text)]
    (folder / "qrels" / "dev.tsv").write_text("".join(lines), encoding="utf-8")
    return folder


def found_by(bundle: Bundle, weights: LegWeights, folder: Path, count: int = 60) -> Path:
    """A collection whose relevant documents are the first three that a bundle finds with these weights."""
    with open_searcher(bundle) as searcher:

        def relevant(text: str) -> list[str]:
            hits = searcher.search(text, task="default", mode="hybrid", k=3, candidates=100, fusion=Fusion(weights))
            return [hit.id for hit in hits or []]

        return write_dev(folder, relevant, count)


def test_divisions_of_the_weights() -> None:
    assert [one.model_dump() for one in weight_grid(0.5, words=False)] == [
        {"dense": 0.0, "sparse": 1.0},
        {"dense": 0.5, "sparse": 0.5},
        {"dense": 1.0, "sparse": 0.0},
    ]
    three = weight_grid(0.1, words=True)
    assert len(three) == 66
    assert all(one.dense + one.sparse + one.bm25 == pytest.approx(1) for one in three)
    for step in (0.3, 0.0, -0.1, 2.0, 0.001):
        with pytest.raises(RecipeError, match="the step is"):
            weight_grid(step, words=False)


def test_better_weights_are_found_and_told(tmp_path: Path) -> None:
    bundle = make_tiny_bundle(tmp_path / "tiny", words=True, weights=LegWeights(dense=1.0))
    dev = found_by(bundle, LegWeights(bm25=1.0), tmp_path / "dev")
    found = tuned(bundle.path, dev, step=0.5)
    assert found.best == LegWeights(bm25=1.0)
    assert found.ndcg[0][1] == pytest.approx(1.0)
    assert found.own == LegWeights(dense=1.0)
    assert found.told
    assert found.gain.mean == pytest.approx(1.0 - found.own_ndcg)  # every fold chooses the same
    assert 0 < found.gain.low <= found.gain.mean <= found.gain.high
    for weights, ndcg in found.ndcg:  # each is what `evaluate` measures
        out = tmp_path / json.dumps(weights.model_dump())
        measured = evaluate_bundle(bundle.path, dev, out, split="dev", weights=weights, only=["hybrid"])
        assert ndcg == pytest.approx(measured.metrics["hybrid"]["nDCG@10"])


def test_weights_that_are_best_already_gain_nothing(tmp_path: Path) -> None:
    bundle = make_tiny_bundle(tmp_path / "tiny", weights=LegWeights(dense=0.5, sparse=0.5))
    dev = found_by(bundle, LegWeights(dense=0.5, sparse=0.5), tmp_path / "dev")
    found = tuned(bundle.path, dev, step=0.5)
    assert found.best == found.own
    assert not found.told
    assert found.gain.mean == 0.0


def test_a_choice_by_chance_is_not_told(tmp_path: Path) -> None:
    """Judgments without any relation to the texts: what is chosen on some says nothing of the others."""
    bundle = make_tiny_bundle(tmp_path / "tiny", words=True)
    ids, random = [document.id for document in tiny_documents(120)], np.random.default_rng(1)
    dev = write_dev(tmp_path / "dev", lambda _: [ids[random.integers(len(ids))]])
    found = tuned(bundle.path, dev, step=0.25)
    assert found.ndcg[0][1] >= found.own_ndcg
    assert not found.told


def test_queries_are_drawn_and_have_to_be_enough(tmp_path: Path, tiny_bundle: Bundle) -> None:
    few = write_dev(tmp_path / "few", lambda _: ["music"], count=19)
    with pytest.raises(RecipeError, match="19 judged queries are too few"):
        tuned(tiny_bundle.path, few)
    many = write_dev(tmp_path / "many", lambda _: ["music"])
    assert tuned(tiny_bundle.path, many, most=25, step=1.0).queries == 25
    strange = write_dev(tmp_path / "strange", lambda _: ["nothing of the kind"])
    with pytest.raises(CorpusError, match=r"None of the .* relevant documents is in the bundle"):
        tuned(tiny_bundle.path, strange)


def test_an_interval_holds_the_mean_and_widens_with_the_spread() -> None:
    narrow, wide = (Difference.of(0.1 + spread * np.resize([-1.0, 1.0], 100), 0) for spread in (0.01, 1.0))
    assert narrow.low < narrow.mean < narrow.high
    assert narrow.low > 0 > wide.low
    assert str(narrow).startswith("+0.1000 (95 % interval +0.0")


def test_the_command_says_which_weights_to_set(tmp_path: Path) -> None:
    bundle = make_tiny_bundle(tmp_path / "tiny", weights=LegWeights(dense=1.0))
    words = ["tune", str(bundle.path), "--step", "0.5", "--dev"]
    better = CliRunner().invoke(app, [*words, str(found_by(bundle, LegWeights(sparse=1.0), tmp_path / "sparse"))])
    assert better.exit_code == 0, better.output
    assert "set index.weights: {sparse: 1} in the recipe" in better.stdout
    same = found_by(bundle, LegWeights(dense=1.0), tmp_path / "dense")
    kept = CliRunner().invoke(app, [*words, str(same), "--json"])
    summary = json.loads(kept.stdout)
    assert (summary["weights"], summary["told"]) == ({"dense": 1.0, "sparse": 0.0}, False)


def test_documents_are_searched_for_by_their_own_sentences(tmp_path: Path) -> None:
    """Dense vectors that know nothing of the texts hurt, and are found out; BM25 impacts don't."""
    random = make_tiny_bundle(tmp_path / "dense", weights=LegWeights(dense=1.0))
    found = find_known_items(open_searcher, random, tmp_path)
    assert found is not None
    assert found.queries == 118  # two have no sentence
    assert found.below_bm25
    assert found.mrr["hybrid"] == found.mrr["dense"] < found.mrr["bm25"]
    words = make_tiny_bundle(tmp_path / "words", words=True, weights=LegWeights(bm25=1.0))
    same = find_known_items(open_searcher, words, tmp_path)
    assert same is not None
    assert not same.below_bm25
    assert same.difference.mean == 0.0
    assert find_known_items(open_searcher, make_tiny_bundle(tmp_path / "few", documents=10), tmp_path) is None


def test_documents_without_terms_are_no_obstacle(tmp_path: Path) -> None:
    """A sentence that the tokenizer knows nothing of finds nothing by vectors or tokens, and BM25 finds its words."""
    known = [f"music player number {number} of nine" for number in range(30)]
    unknown = [f"ភាសា ខ្មែរ អក្សរ លេខ{chr(ord('ក') + number)}" for number in range(30)]
    shares = {}
    for name, texts in (("some", [*known, *unknown]), ("all", unknown)):
        documents = [TinyDocument(f"d{number}", "", text, 2000) for number, text in enumerate(texts)]
        bundle = make_tiny_bundle(tmp_path / name, documents=documents, own_tokenizer=english_tokenizer())
        found = find_known_items(open_searcher, bundle, tmp_path)
        assert found is not None
        assert found.queries == len(texts)
        shares[name] = found.mrr
        dev = tmp_path / f"{name}-dev"
        (dev / "qrels").mkdir(parents=True)
        queries = [json.dumps({"_id": f"q{number}", "text": text}) for number, text in enumerate(texts)]
        (dev / "queries.jsonl").write_text("\n".join(queries) + "\n")
        (dev / "qrels" / "dev.tsv").write_text("".join(f"q{number}\td{number}\t1\n" for number in range(len(texts))))
        chosen = tuned(bundle.path, dev, step=0.5)
        assert chosen.queries == len(texts)
        assert (chosen.ndcg[0][1] > 0) == (name == "some")
    assert shares["all"]["hybrid"] == 0
    assert shares["all"]["bm25"] > 0.9
    assert 0 < shares["some"]["hybrid"] <= 0.5
