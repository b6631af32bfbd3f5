"""A language model's token table, fitted to the encoded corpus: through the commands, with a tiny real model."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.verify import verify_bundle
from tests.support.commands import invoke, only, run
from tests.support.encoded import encoded_rows
from tests.support.models import write_corpus
from tests.support.recipes import save, write_recipe

DOCUMENTS = 120
DISTIL = {"epochs": 20, "batch_size": 16, "learning_rate": 0.02, "held_out": 12, "sentences": False}


@pytest.fixture
def recipe(tmp_path: Path, model_folder: Path) -> Path:
    return write_recipe(
        tmp_path,
        model_folder,
        documents=DOCUMENTS,
        tasks={"web": "Find it", "other": "Find another"},
        encode={"max_length": 32, "top_k": 40},
        kind="language-model",
        distil=DISTIL,
    )


def changed(recipe: Path, **values: object) -> Path:
    content = yaml.safe_load(recipe.read_text()) | values
    return save(recipe.with_name("other.yaml"), {name: value for name, value in content.items() if value is not None})


def cosine(bundle: Bundle, work: Path) -> float:
    """Mean cosine of the documents' own vectors and what the table of the default task makes of their tokens."""
    tokenizer, table = bundle.tokenizer(), bundle.table(bundle.manifest.default_task)
    documents = [json.loads(line) for line in (work.parent / "corpus.jsonl").read_text().splitlines()]
    texts = [f"{one['title']} {one['text']}".strip() for one in documents]
    made = np.stack([table.rows(tokenizer.encode(text)[:32]).mean(axis=0) for text in texts])
    vectors = encoded_rows(work / "encode").dense
    lengths = np.linalg.norm(made, axis=1) * np.linalg.norm(vectors.astype(np.float32), axis=1)
    return float(((made * vectors).sum(axis=1) / lengths).mean())


def test_a_fitted_table_makes_of_a_documents_tokens_what_the_model_made_of_the_document(
    recipe: Path, tmp_path: Path
) -> None:
    run("build", recipe)
    bundle = Bundle.open(tmp_path / "bundle")
    assert verify_bundle(bundle.path) == []
    run("build", changed(recipe, distil=None, work=str(tmp_path / "work2"), output=str(tmp_path / "plain")))
    before, after = (cosine(one, tmp_path / "work") for one in (Bundle.open(tmp_path / "plain"), bundle))
    assert after > before + 0.05
    one, other = (bundle.table(task).rows(np.arange(100)) for task in ("web", "other"))
    assert not np.array_equal(one, other)  # each task's table is fitted from its own
    record = json.loads((tmp_path / "work/tables/web/training.json").read_text())
    epochs = record["epochs"]
    assert len(epochs) == DISTIL["epochs"] + 1
    assert epochs[record["agreement"]["epoch"]]["overlap"] == max(epoch["overlap"] for epoch in epochs)


def test_what_is_missing_or_was_changed_is_said(recipe: Path, tmp_path: Path) -> None:
    plain = changed(recipe, distil=None)
    run(*only("table"), plain)
    assert "Run `lightretriever build --from encode`" in str(invoke(*only("table"), recipe).exception)
    run(*only("encode"), recipe)
    assert "table.npy: not there" in str(invoke(*only("index"), recipe).exception)
    run(*only("table"), recipe)
    early = str(invoke(*only("index"), changed(recipe, distil={**DISTIL, "epochs": 2})).exception)
    assert "(settings.epochs: " in early
    assert early.endswith("Run `lightretriever build --from table` with this recipe.")
    assert "(settings: " in str(invoke(*only("index"), changed(recipe, distil=None)).exception)
    with (tmp_path / "corpus.jsonl").open("a") as corpus:
        corpus.write('{"_id": "late", "text": "a late document"}\n')
    assert "1 of 121 documents are not there" in str(invoke(*only("table"), recipe).exception)


def test_a_corpus_that_is_too_small_is_refused(recipe: Path, tmp_path: Path) -> None:
    write_corpus(tmp_path / "corpus.jsonl", 9)
    assert "9 texts to fit a token table to, of which none can be held out" in str(invoke("build", recipe).exception)
    assert not (tmp_path / "bundle").exists()
