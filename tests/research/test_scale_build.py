"""What a build takes: the program that measures it, and its table."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer

from research.pages.growth_tables import build_table
from research.scale.build import differences, main, read_documents
from tests.support.models import write_corpus
from tests.support.tiny import make_tiny_bundle, tiny_documents, train_tokenizer


def test_bundles_are_compared_by_what_they_hold(tmp_path: Path) -> None:
    paths = [make_tiny_bundle(tmp_path / str(number), documents=20, seed=max(number, 1)).path for number in range(3)]
    assert differences(paths[0], paths[1]) == []
    assert {"dense.faiss", "tables/fact.npy", "lucene"} <= set(differences(paths[0], paths[2]))


def test_short_documents_are_spans_of_a_corpus_and_always_the_same(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus.jsonl", 20)
    texts = [json.loads(line)["text"] for line in corpus.read_text().splitlines()]
    assert list(read_documents(corpus, 5)) == corpus.read_text().splitlines(keepends=True)[:5]
    drawn = [json.loads(line) for line in read_documents(corpus, 50, words=3)]
    assert [one["_id"] for one in drawn] == [str(number) for number in range(50)]
    assert len({one["text"] for one in drawn}) > 20
    for one in drawn:
        assert len(one["text"].split()) == 3
        assert any(one["text"] in " ".join(text.split()) for text in texts)
    assert [json.loads(line) for line in read_documents(corpus, 50, words=3)] == drawn


@pytest.mark.slow
def test_versions_are_measured_in_turns_and_make_a_table(tmp_path: Path) -> None:
    train_tokenizer(tmp_path / "tokenizer.json", [document.text for document in tiny_documents(100)])
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    rows = np.random.default_rng(0).standard_normal((tokenizer.get_vocab_size(), 8)).astype(np.float32)
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_weights=rows)], device="cpu")
    model.save(str(tmp_path / "model"), create_model_card=False)
    corpus, results = write_corpus(tmp_path / "corpus.jsonl", 100), tmp_path / "build.json"
    sides = [option for name in ("one", "other") for option in ("--side", name, sys.executable)]
    assert main([str(corpus), str(tmp_path / "model"), "--results", str(results), *sides]) == 0
    one, other = json.loads(results.read_text())["sides"]
    assert (one["documents"], one["differ"], other["name"]) == (100, [], "other")
    for side in (one, other):
        assert all(side[kind][name] > 0 for kind in ("whole", "changed") for name in ("wall_s", "cpu_s", "peak_mib"))
    heading, table, source = build_table(results)
    assert heading == "### What a build of passages takes\n"
    assert table.count("| one, ") == table.count("| other, ") == 2
    assert "The bundles of all versions are identical." in source
    drawn = [str(corpus), str(tmp_path / "model"), "--results", str(results), *sides, "--words", "3", "--once"]
    assert main(drawn) == 0
    heading, table, _ = build_table(results)
    assert heading == "### What a build of 20,000 documents of 3 words takes\n"
    assert table.count("| one, ") == table.count("| other, ") == 1
    content = json.loads(results.read_text())
    content["sides"][0]["differ"] = ["dense.faiss", "lucene"]
    results.write_text(json.dumps(content))
    assert "The bundles differ in: dense.faiss, lucene." in build_table(results)[2]
