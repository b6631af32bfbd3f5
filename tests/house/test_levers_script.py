"""recipes/levers.py on a tiny bundle: every lever is measured, its BM25 is that of the index, and errors are clear."""

from pathlib import Path

import numpy as np
import pytest
from lightretriever.artifacts.sparse.bm25 import WordSearch, indexed_words, words_of

from recipes import levers
from tests.support.meaning import make_meaningful_bundle

QUERIES = {"doc-0": "mend the tyre of a bicycle", "doc-3": "harvest honey in summer", "doc-9": "milk and rennet"}


def collection(folder: Path, **more: str) -> Path:
    (folder / "qrels").mkdir(parents=True)
    queries = QUERIES | more
    (folder / "queries.jsonl").write_text(
        "".join(f'{{"_id": "{name}", "text": "{text}"}}\n' for name, text in queries.items())
    )
    judged = "".join(f"{name}\t{name}\t1\n" for name in queries)
    (folder / "qrels" / "dev.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}")
    return folder


def test_every_lever_gets_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = make_meaningful_bundle(tmp_path / "bundle").path
    assert levers.main([str(bundle), str(collection(tmp_path / "set")), "--other", str(bundle)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["as", "it", "is", "1.0000", "(3", "queries)"]
    assert [line.split()[0] for line in lines[1:]] == [
        *["normalisation"] * 2,
        *["BM25"] * 5,
        *["Rocchio:"] * 4,
        *["RM3:"] * 3,
        *["other"] * 3,
    ]
    assert lines[-1].endswith("1.0000 +0.0000 (95 % interval +0.0000 to +0.0000)")  # the same bundle changes nothing


def test_its_bm25_is_that_of_the_index(tmp_path: Path) -> None:
    texts = list(QUERIES.values())
    with make_meaningful_bundle(tmp_path / "bundle").sparse() as index:
        words = levers.Words(indexed_words(index, 0, index.count), words_of(texts))
        theirs = [WordSearch(index).scores(text, np.arange(index.count)) for text in texts]
    assert (words.queries @ words.weights().T).toarray() == pytest.approx(np.stack(theirs), abs=0.05)


def test_errors_name_the_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = make_meaningful_bundle(tmp_path / "bare", words=False).path
    assert levers.main([str(bundle), str(collection(tmp_path / "set"))]) == 2
    assert "set index.words in its recipe" in capsys.readouterr().err
    whole = make_meaningful_bundle(tmp_path / "bundle").path
    assert levers.main([str(whole), str(collection(tmp_path / "strange", other="%%"))]) == 2
    assert "1 of 4 queries have no vector" in capsys.readouterr().err
