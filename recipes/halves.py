"""Does a table need the very corpus that it serves? Fitted to one half of a collection, measured on the other.

    python -m recipes.halves RESULT RECIPE=COLLECTION RECIPE=COLLECTION …

RECIPE is that of a bundle with `distil` and words, which is built: its encoded documents and its encoder's vectors of
sentences are taken as they are. The documents are drawn into two halves by a fixed seed. Each half in turn is searched
with the test queries that have a relevant document in it, by tables that were fitted to the documents and sentences of

- `other`: the other half, of which no document is searched;
- `own`: the half that is searched, as many documents as `other` has;
- `whole`: both halves, as the bundle's.

`encoder` reads the queries itself, and `bm25` needs no table. Hybrid search is over dense scores and BM25 on words with
equal weights. All scores are exact, and IDF is that of the half. RESULT gets the mean nDCG@10 over the queries of both
halves, and the difference between `other` and `own` with its 95 % interval, as JSON; other collections stay in it.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.corpus.beir import Document
from lightretriever.artifacts.errors import LightRetrieverError
from lightretriever.artifacts.evaluation.runs import JudgedQueries, read_judged
from lightretriever.artifacts.evaluation.tune import Difference
from lightretriever.artifacts.pipeline.encoder import token_rows
from lightretriever.artifacts.pipeline.fit import distinct_rows, fit_table
from lightretriever.artifacts.pipeline.fit_texts import DistilTexts, corpus_sentences
from lightretriever.artifacts.pipeline.recipe import Recipe, load_recipe
from lightretriever.artifacts.pipeline.stages import load_recipe_encoder
from lightretriever.artifacts.sparse.bm25 import indexed_words, words_of
from lightretriever.artifacts.tokens.idf import count_tokens

from recipes.levers import Floats, Legs, Values, Words

__all__ = ["halves", "judged_among", "main"]

Rows = npt.NDArray[np.int64]

_WEIGHT: Final = 0.5
_SEED: Final = 0


@dataclass(frozen=True)
class _Collection:
    """What a recipe has encoded, in the order of the corpus, with the words of its documents and its test queries."""

    recipe: Recipe
    texts: DistilTexts
    states: Floats
    """Of single tokens, (V, H)."""
    documents: list[Document]
    words: list[str]
    judged: JudgedQueries

    @classmethod
    def read(cls, recipe: Recipe, dataset: Path) -> "_Collection":
        """Raises ValueError for a recipe without `distil`, and for a bundle without words or of another corpus."""
        if recipe.distil is None or not recipe.index.words:
            raise ValueError(f"{recipe.name}: the recipe needs the section distil, and index.words: true")
        encoder = load_recipe_encoder(recipe)
        texts = DistilTexts.of(recipe, recipe.distil, encoder)
        kept = recipe.work / "halves" / "states"
        states = token_rows(encoder, recipe.tasks[recipe.default_task], kept)
        documents = list(recipe.corpus.open())
        with Bundle.open(recipe.output).sparse() as index:
            words = dict(zip(index.ids(), indexed_words(index, 0, index.count), strict=True))
        if [document.id for document in documents if document.id not in words]:
            raise ValueError(f"{recipe.output}: was built from another corpus than {recipe.corpus.path}")
        in_order = [words[document.id] for document in documents]
        return cls(recipe, texts, states, documents, in_order, read_judged(dataset, "test"))

    def table(self, rows: Rows, name: str) -> Floats:
        """A table (V, H) fitted to these documents (n,), and to their sentences among those of the whole."""
        own, all_of = (
            set(corpus_sentences(documents, None, _SEED))
            for documents in ([self.documents[row] for row in rows], self.documents)
        )
        part = replace(
            self.texts,
            documents=[self.texts.documents[row] for row in rows],
            vectors=self.texts.vectors[rows],
            statistics=count_tokens([self.texts.documents[row] for row in rows], len(self.states)),
            texts=[text for text in self.texts.texts if text in own or text not in all_of],
        )
        task = self.recipe.default_task
        teacher = self.recipe.work / "halves" / name
        if not teacher.is_dir():
            shutil.copytree(self.recipe.work / "tables" / task / "teacher", teacher)
        fitted = fit_table(
            distinct_rows(self.states, part.statistics), part.of_task(self.recipe.tasks[task], teacher), part.settings
        )
        return fitted.rows

    def queries(self) -> tuple[list[npt.NDArray[np.int32]], Floats]:
        """The tokens (n,) of each test query, and the queries' vectors (q, H) by the encoder itself."""
        asked, encoder = list(self.judged.queries.values()), self.texts.encoder
        encoded = encoder.encode_queries(asked, self.recipe.tasks[self.recipe.default_task])
        return list(encoder.tokenizer.as_queries(asked)), encoded.dense


def halves(collection: _Collection) -> Iterator[dict[str, Values]]:
    """The nDCG@10 of each query that has a relevant document in a half, (q,), by system, for both halves in turn."""
    drawn = np.random.default_rng(_SEED).permutation(len(collection.documents))
    cut = np.sort(drawn[: len(drawn) // 2]), np.sort(drawn[len(drawn) // 2 :])
    asked, encoded = collection.queries()
    tables = [collection.table(rows, f"teacher-{number}") for number, rows in enumerate(cut)]
    whole = collection.table(np.arange(len(drawn)), "teacher-whole")
    for searched, rows in enumerate(cut):
        by_table = {"other": tables[1 - searched], "own": tables[searched], "whole": whole}
        vectors = {name: _means(table, asked) for name, table in by_table.items()}
        yield _measured(collection, rows, vectors | {"encoder": encoded})


def _means(table: Floats, queries: Sequence[npt.NDArray[np.int32]]) -> Floats:
    """The mean row of each query's tokens, normalised (q, H). Zeros for a query without tokens."""
    means = np.stack([table[ids].sum(axis=0) for ids in queries])
    vectors: Floats = means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
    return vectors


def _measured(collection: _Collection, rows: Rows, queries: Mapping[str, Floats]) -> dict[str, Values]:
    """Search the documents (n,) by vectors of all queries (q, H), and by BM25."""
    ids = [collection.documents[row].id for row in rows]
    judged, kept = judged_among(collection.judged, set(ids))
    words = Words([collection.words[row] for row in rows], words_of(list(judged.queries.values())))
    bm25 = (words.queries @ words.weights().T).toarray().astype(np.float32)
    documents = collection.texts.vectors[rows].astype(np.float32)
    found = {"bm25": Legs(ids, judged, np.zeros_like(bm25), bm25, 0.0).ndcg()}
    for name, vectors in queries.items():
        legs = Legs(ids, judged, vectors[kept] @ documents.T, bm25, _WEIGHT)
        found[f"{name} hybrid"] = legs.ndcg()
        found[f"{name} dense"] = replace(legs, weight=1.0).ndcg()
    return found


def judged_among(judged: JudgedQueries, ids: set[str]) -> tuple[JudgedQueries, Rows]:
    """The queries with a relevant document among `ids`, and their places (q,) among all."""
    qrels = {
        name: {document: grade for document, grade in grades.items() if document in ids}
        for name, grades in judged.qrels.items()
    }
    kept = [place for place, name in enumerate(judged.queries) if any(grade > 0 for grade in qrels[name].values())]
    names = [name for place, name in enumerate(judged.queries) if place in set(kept)]
    part = JudgedQueries({name: judged.queries[name] for name in names}, {name: qrels[name] for name in names}, [])
    return part, np.array(kept, dtype=np.int64)


def summary(parts: Sequence[Mapping[str, Values]]) -> dict[str, Any]:
    """Means over the queries of both halves, and what `other` loses against `own`, dense and hybrid."""
    values = {system: np.concatenate([part[system] for part in parts]) for system in parts[0]}
    found: dict[str, Any] = {"queries": len(values["bm25"])}
    found["ndcg@10"] = {system: round(float(one.mean()), 5) for system, one in values.items()}
    for leg in ("dense", "hybrid"):
        lost = Difference.of(values[f"other {leg}"] - values[f"own {leg}"], _SEED)
        found[f"other-own {leg}"] = {key: round(value, 5) for key, value in vars(lost).items()}
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write; returns the exit status."""
    parser = argparse.ArgumentParser(description="Does a table need the very corpus that it serves?")
    parser.add_argument("result", type=Path, help="JSON file to write")
    parser.add_argument("collections", nargs="+", metavar="RECIPE=COLLECTION")
    given = parser.parse_args(arguments)
    pairs = [collection.split("=") for collection in given.collections]
    if any(len(pair) != 2 for pair in pairs):
        parser.error("give each collection as RECIPE=COLLECTION")
    try:
        found = json.loads(given.result.read_text(encoding="utf-8")) if given.result.is_file() else {}
        for recipe, dataset in pairs:
            collection = _Collection.read(load_recipe(Path(recipe)), Path(dataset))
            name = collection.recipe.corpus.name
            found[name] = {"documents": len(collection.documents), **summary(list(halves(collection)))}
            print(f"{name}: {json.dumps(found[name])}")
            given.result.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    except (LightRetrieverError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
