"""A language model's token table, trained on the encoded corpus: through the commands, with a tiny real model."""

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
REFINE = {"epochs": 20, "batch_size": 16, "learning_rate": 0.02, "held_out": 12}


@pytest.fixture
def recipe(tmp_path: Path, model_folder: Path) -> Path:
    return write_recipe(
        tmp_path,
        model_folder,
        documents=DOCUMENTS,
        tasks={"web": "Find it", "other": "Find another"},
        encode={"max_length": 32, "top_k": 40},
        index={"factory": "Flat"},
        refine=REFINE,
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
    vectors = encoded_rows(work / "encode").dense[:, : made.shape[1]]
    lengths = np.linalg.norm(made, axis=1) * np.linalg.norm(vectors.astype(np.float32), axis=1)
    return float(((made * vectors).sum(axis=1) / lengths).mean())


def test_a_refined_table_makes_of_a_documents_tokens_what_the_model_made_of_the_document(
    recipe: Path, tmp_path: Path
) -> None:
    run("build", recipe)
    bundle = Bundle.open(tmp_path / "bundle")
    assert verify_bundle(bundle.path) == []
    plain = changed(recipe, refine=None, output=str(tmp_path / "plain"))
    run(*only("index"), plain)
    before, after = (cosine(one, tmp_path / "work") for one in (Bundle.open(tmp_path / "plain"), bundle))
    assert after > before + 0.05
    one, other = (bundle.table(task).rows(np.arange(100)) for task in ("web", "other"))
    assert not np.array_equal(one, other)  # each task's table is refined from its own
    table = tmp_path / "work/tables/web" / f"refined-{bundle.manifest.dimension}"
    record = json.loads((table / "training.json").read_text())
    epochs = record["epochs"]
    assert len(epochs) == REFINE["epochs"] + 1
    assert epochs[record["agreement"]["epoch"]]["overlap"] == max(epoch["overlap"] for epoch in epochs)


@pytest.mark.slow
def test_rows_are_trained_for_the_bundles_dimension(recipe: Path, tmp_path: Path) -> None:
    small = changed(recipe, index={"factory": "Flat", "dimension": 8}, output=str(tmp_path / "small"))
    run("build", small)
    assert Bundle.open(tmp_path / "small").manifest.dimension == 8
    rows = np.load(tmp_path / "work/tables/web/refined-8/table.npy")
    assert rows.shape[1] == 8
    run("build", recipe)  # the whole dimension beside it, from the same encoding
    plain = changed(recipe, refine=None, index={"factory": "Flat", "dimension": 8}, output=str(tmp_path / "plain"))
    run(*only("index"), plain)
    before, after = (cosine(Bundle.open(tmp_path / name), tmp_path / "work") for name in ("plain", "small"))
    assert after > before + 0.05


def test_what_is_missing_or_was_changed_is_said(recipe: Path, tmp_path: Path) -> None:
    run(*only("table"), recipe)
    assert "encode" in str(invoke(*only("refine"), recipe).exception)
    run(*only("encode"), recipe)
    assert "Run `lightretriever build --from refine`" in str(invoke(*only("index"), recipe).exception)
    run(*only("refine"), recipe)
    other = changed(recipe, refine={**REFINE, "epochs": 2})
    early = str(invoke(*only("index"), other).exception)
    assert "(settings.epochs: " in early
    assert early.endswith("Run `lightretriever build --from refine` with this recipe.")
    run(*only("refine"), other)
    run(*only("index"), other, "--overwrite")
    run(*only("refine"), recipe)
    with (tmp_path / "corpus.jsonl").open("a") as corpus:
        corpus.write('{"_id": "late", "text": "a late document"}\n')
    assert "1 of 121 documents are not there" in str(invoke(*only("refine"), recipe).exception)
    none = changed(recipe, refine=None)
    assert "the recipe has no section refine" in str(invoke(*only("refine"), none).exception)


def test_a_corpus_that_is_too_small_is_refused(recipe: Path, tmp_path: Path) -> None:
    write_corpus(tmp_path / "corpus.jsonl", 9)
    assert "9 texts to fit a token table to, of which none can be held out" in str(invoke("build", recipe).exception)
    assert not (tmp_path / "bundle").exists()
