"""Choosing the legs' weights by judged queries, and comparing hybrid search with BM25 without any."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lightretriever.artifacts.bundle.manifest import LegWeights
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import CorpusError, RecipeError
from lightretriever.artifacts.evaluation.evaluate import fusion_of
from lightretriever.artifacts.evaluation.tune import Difference, KnownItems, dense_helps, find_known_items, tune_weights
from lightretriever.service.commands.evaluation import open_searcher
from tests.support.commands import run, summary_of
from tests.support.judged import evaluate_bundle, write_judged
from tests.support.tiny import BundleOf, TinyDocument, make_tiny_bundle, tiny_documents
from tests.support.wordings import raises

QUERIES = [text for document in tiny_documents(80) if (text := " ".join(document.text.split()[:4]))][:60]


def tuned(*arguments: Any, **options: Any) -> SimpleNamespace:
    """The facts that `tune_weights` finds."""
    return SimpleNamespace(**tune_weights(open_searcher, *arguments, split="dev", **options).facts)


def known_items(bundle: Bundle) -> KnownItems | None:
    return find_known_items(open_searcher, bundle, bundle.path.parent)


def write_dev(folder: Path, relevant: Callable[[str], list[str]], count: int = 60) -> Path:
    """A collection whose relevant documents are those that `relevant` gives for a query."""
    queries = {f"q{number}": text for number, text in enumerate(QUERIES[:count])}
    qrels = {name: dict.fromkeys(relevant(text), 1) for name, text in queries.items()}
    return write_judged(folder, queries, qrels, "dev")


def found_by(bundle: Bundle, weights: LegWeights, folder: Path, count: int = 60) -> Path:
    """A collection whose relevant documents are the first three that a bundle finds with these weights."""
    fusion = replace(fusion_of(bundle.manifest), weights=weights)
    with open_searcher(bundle) as searcher:

        def relevant(text: str) -> list[str]:
            hits = searcher.search(text, task="default", mode="hybrid", k=3, candidates=100, fusion=fusion)
            return [name for name, _ in hits or []]

        return write_dev(folder, relevant, count)


def test_better_weights_are_found_and_told(tmp_path: Path) -> None:
    bundle = make_tiny_bundle(tmp_path / "tiny", vocabulary="words", weights=LegWeights(dense=1.0))
    dev = found_by(bundle, LegWeights(sparse=1.0), tmp_path / "dev")
    found = tuned(bundle.path, dev)
    assert found.weights == {"dense": 0.0, "sparse": 1.0}
    assert found.divisions[0]["ndcg"] == pytest.approx(1.0)
    assert found.divisions[0]["by_chance"]
    assert not found.divisions[-1]["by_chance"]
    assert found.own_weights == {"dense": 1.0, "sparse": 0.0}
    assert found.told
    assert found.gain == pytest.approx(1.0 - found.own_ndcg)  # every fold chooses the same
    assert 0 < found.interval[0] <= found.gain <= found.interval[1]
    assert found.dense_helps is False
    assert (found.dense_gain, found.dense_interval) == (0.0, (0.0, 0.0))
    measured = evaluate_bundle(bundle.path, dev, tmp_path / "out", split="dev", only=["dense", "sparse"])["metrics"]
    for leg in ("dense", "sparse"):
        (alone,) = (one["ndcg"] for one in found.divisions if one["weights"][leg] == 1.0)
        assert alone == pytest.approx(measured[leg]["nDCG@10"])


def test_a_choice_by_chance_is_not_told(bundle_of: BundleOf, tmp_path: Path) -> None:
    """Judgments without any relation to the texts: what is chosen on some says nothing of the others."""
    ids, random = [document.id for document in tiny_documents(120)], np.random.default_rng(1)
    dev = write_dev(tmp_path / "dev", lambda _: [ids[random.integers(len(ids))]])
    found = tuned(bundle_of("words").path, dev)
    assert not found.told
    assert found.dense_helps is not True
    assert found.divisions[1]["by_chance"]


def test_a_gain_is_little_or_uncertain() -> None:
    assert dense_helps(Difference(0.02, 0.01, 0.03)) is True
    assert dense_helps(Difference(0.02, -0.01, 0.05)) is None
    assert dense_helps(Difference(0.001, -0.002, 0.004)) is False
    assert dense_helps(Difference(-0.01, -0.04, 0.02)) is False


def test_a_single_leg_is_refused(bundle_of: BundleOf, tmp_path: Path) -> None:
    dev = write_dev(tmp_path / "dev", lambda _: ["music"])
    with raises(RecipeError, naming="index.dense"):
        tuned(bundle_of("words", dense=False).path, dev)


def test_queries_are_drawn_and_have_to_be_enough(
    tmp_path: Path, tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = write_dev(tmp_path / "few", lambda _: ["music"], count=19)
    with raises(RecipeError, naming="19"):
        tuned(tiny_bundle.path, few)
    many = write_dev(tmp_path / "many", lambda _: ["music"])
    monkeypatch.setattr("lightretriever.artifacts.evaluation.tune._MAX_QUERIES", 25)
    assert tuned(tiny_bundle.path, many).queries == 25
    strange = write_dev(tmp_path / "strange", lambda _: ["nothing of the kind"])
    with raises(CorpusError, naming="nothing of the kind"):
        tuned(tiny_bundle.path, strange)


def test_an_interval_holds_the_mean_and_widens_with_the_spread() -> None:
    narrow, wide = (Difference.of(0.1 + spread * np.resize([-1.0, 1.0], 100)) for spread in (0.01, 1.0))
    assert narrow.low < narrow.mean < narrow.high
    assert narrow.low > 0 > wide.low


def test_the_command_says_which_weights_to_set(tmp_path: Path) -> None:
    bundle = make_tiny_bundle(tmp_path / "tiny", weights=LegWeights(dense=1.0))
    words = ["evaluate", "--tune", bundle.path]
    better = run(*words, found_by(bundle, LegWeights(sparse=1.0), tmp_path / "sparse"))
    assert "set index.weights: {sparse: 1} in the recipe" in better
    summary = summary_of(*words, found_by(bundle, LegWeights(dense=1.0), tmp_path / "dense"))
    assert (summary["weights"], summary["told"]) == ({"dense": 1.0, "sparse": 0.0}, False)
    assert summary["own_ndcg"] == pytest.approx(1.0)  # the best already
    assert summary["gain"] <= 0.0 < summary["dense_interval"][0]
    assert summary["dense_helps"] is True
    assert len(summary["divisions"]) == 11
    assert summary["divisions"][0] == {"weights": summary["weights"], "ndcg": 1.0, "by_chance": True}


def test_documents_are_searched_for_by_their_own_sentences(bundle_of: BundleOf, tmp_path: Path) -> None:
    """Dense vectors that know nothing of the texts hurt, and are found out; impacts of words don't."""
    random = make_tiny_bundle(tmp_path / "dense", weights=LegWeights(dense=1.0))
    found = known_items(random)
    assert found is not None
    assert found.queries == 118  # two have no sentence
    assert found.weak == ["dense"]
    assert found.mrr["hybrid"] == found.mrr["dense"] < found.mrr["bm25"]
    words = make_tiny_bundle(tmp_path / "words", vocabulary="words", weights=LegWeights(sparse=1.0))
    same = known_items(words)
    assert same is not None
    assert same.weak == []  # the dense leg has no weight
    assert same.difference.mean == pytest.approx(0.0, abs=0.02)
    one = known_items(bundle_of("words", dense=False))
    assert one is not None
    assert set(one.mrr) == {"sparse", "bm25"}
    assert (one.mrr["sparse"], one.difference) == (same.mrr["sparse"], same.difference)
    assert known_items(make_tiny_bundle(tmp_path / "few", documents=10)) is None


def test_documents_without_terms_are_no_obstacle(tmp_path: Path) -> None:
    """A sentence of stop words alone finds nothing by words."""
    known = [f"music player number {number} of nine" for number in range(30)]
    unknown = [f"{'to be or not to be that is it ' * 2}{'and ' * (number % 3)}".strip() for number in range(30)]
    documents = [TinyDocument(f"d{number}", "", text, 2000) for number, text in enumerate([*known, *unknown])]
    bundle = make_tiny_bundle(tmp_path / "some", documents=documents, vocabulary="words", weights=LegWeights(sparse=1))
    found = known_items(bundle)
    assert found is not None
    assert found.queries == len(documents)
    assert 0 < found.mrr["sparse"] <= 0.5
    assert found.mrr["bm25"] == pytest.approx(found.mrr["sparse"], abs=0.02)
    queries = {one.id: one.text for one in documents}
    dev = write_judged(tmp_path / "dev", queries, {name: {name: 1} for name in queries}, "dev")
    chosen = tuned(bundle.path, dev)
    assert chosen.queries == len(documents)
    assert chosen.divisions[0]["ndcg"] > 0
