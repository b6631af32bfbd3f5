"""research/quality/expansion.py on a tiny collection with a tiny model, and how the page shows what it records."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from research.pages.quality_tables import expansion_size_table, expansion_table
from research.quality import evaluate, expansion, expansion_size
from tests.research.test_evaluate import RECIPE
from tests.support.biencoder import save_biencoder
from tests.support.commands import run
from tests.support.judged import write_judged
from tests.support.models import save_model, write_corpus
from tests.support.recipes import write_recipe


def test_settings_are_compared_with_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collection = tmp_path / "data" / "eval" / "toy"
    queries = {"q1": "playlists and a small library", "q2": "the"}
    write_judged(collection, queries, {name: {"music": 1} for name in queries}, "dev")
    write_corpus(collection / "corpus.jsonl", 20)
    toy = evaluate.Collection("eval/toy", "Given a text, retrieve its like", split="dev")
    monkeypatch.setattr(expansion, "DEVELOPMENT", (toy,))
    recipe, results = tmp_path / "recipe.yaml", tmp_path / "expansion.json"
    recipe.write_text(yaml.safe_dump(RECIPE))
    command = [str(recipe), "--model", str(save_model(tmp_path / "model", "llama")), "--vocabulary", "words"]
    command += ["--data", str(tmp_path / "data"), "--work", str(tmp_path / "work"), "--results", str(results)]
    for system in ("one", "other"):
        assert expansion.main([*command, "--system", system, "--weights", "0.25", "1", "--terms", "2", "16"]) == 0
    systems = json.loads(results.read_text())["systems"]
    assert list(systems) == ["one", "other"]
    found = systems["one"]
    assert [row["setting"] for row in found["rows"]] == [
        "λ 0.25, k 16",
        "plain",
        "λ 0.25, k 2",
        "λ 1, k 2",
        "λ 1, k 16",
        "λ 0.25, k 16, b 0",
        "λ 0.25, k 16, b 0.2",
        "λ 0.25, k 16, 200 impacts a unit",
        "λ 0.25, k 16, lacking words too",
        "λ 0.25, k 16, rows / tokens^0.5",
        "λ 0.25, k 16, rows / tokens^1",
        "λ 0.25, k 16, equal form",
        "λ 0.25, k 16, commonest form",
        "λ 0.25, k 16, λ · length^-0.5",
        "λ 0.25, k 16, λ · length^0.5",
    ]
    assert found["queries"] == {"toy": 2}
    assert found["rows"][0]["sparse_difference"] == [0, 0, 0]
    assert found["rows"][1]["sparse"] == {"toy": 0.5, "average": 0.5}  # of the two, one query has no word but "the"
    [table] = expansion_table(results)
    assert "| λ 0.25, k 16, the default |" in table
    assert table.count("Queries: toy 2.") == 2


def test_a_difference_is_the_mean_over_the_collections() -> None:
    random = np.random.default_rng(1)
    ours = {"many": random.random(400), "few": random.random(40) + 1}
    others = {"many": random.random(400), "few": random.random(40)}
    mean, low, high = expansion.difference(ours, others)
    assert mean == pytest.approx(np.mean([(ours[name] - others[name]).mean() for name in ours]), abs=1e-5)
    deviation = np.sqrt(sum((ours[name] - others[name]).var() / len(ours[name]) for name in ours)) / 2
    assert (low, high) == pytest.approx((mean - 1.96 * deviation, mean + 1.96 * deviation), abs=0.1 * deviation)


@pytest.mark.slow
def test_what_expansion_takes_is_measured(tmp_path: Path) -> None:
    sections: dict[str, Any] = {"index": {"factory": "Flat"}, "distil": {"epochs": 1, "batch_size": 4, "held_out": 2}}
    recipe = write_recipe(tmp_path, save_biencoder(tmp_path / "encoder"), documents=20, **sections)
    result = tmp_path / "expansion-size.json"
    run("build", recipe)
    assert expansion_size.main([str(recipe), str(result), "--turns", "1"]) == 0
    expanded, plain = json.loads(result.read_text())["rows"]
    assert (expanded["documents"], plain["added"]) == (20, 0)
    assert expanded["terms"] > plain["terms"]
    [table] = expansion_size_table(result)
    assert "| words alone |" in table
