"""What a journal and a bundle should have together: documents as plain values, and a bundle rebuilt from them."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lightretriever.artifacts.bundle.batches import EncodedBatch
from lightretriever.artifacts.bundle.manifest import LiveInfo
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.live.compact import write_again
from lightretriever.artifacts.live.documents import Change, read_fields, read_impacts, read_vector
from lightretriever.artifacts.sparse.vocabulary import Vocabulary
from lightretriever.artifacts.sparse.writer import numbered

WORDS = (
    *("music", "terminal", "player", "zebra", "xylophone", "network", "images", "search", "engine", "library"),
    *("documents", "chess", "quokka"),
)


@dataclass(frozen=True)
class Row:
    """A document, whole."""

    fields: dict[str, Any]
    vector: npt.NDArray[np.float32] | None
    impacts: dict[str, int]


class Mirror:
    """The documents of a bundle, changed as a service's are, without its code."""

    def __init__(self, bundle: Bundle, seed: int) -> None:
        self.bundle = bundle
        self.random = np.random.default_rng(seed)
        self.rows: dict[str, Row] = {}
        tokenizer = bundle.tokenizer()
        self._vocabulary: Vocabulary = bundle.vocabulary(tokenizer)
        dense = None if bundle.manifest.dense is None else bundle.dense()
        with bundle.sparse() as sparse:
            rows = zip(sparse.documents(np.arange(sparse.count)), sparse.rows(0, sparse.count), strict=True)
        for number, (raw, impacts) in enumerate(rows):
            fields = json.loads(raw)
            vector = None if dense is None else dense.vectors(np.array([number]))[0]
            self.rows[fields.pop("_id")] = Row(fields, vector, impacts)

    def document(self) -> Row:
        """A random document, encoded."""
        words = [WORDS[place] for place in self.random.integers(len(WORDS), size=self.random.integers(2, 12))]
        fields = {"title": " ".join(words[:2]), "text": " ".join(words), "year": int(self.random.integers(1990, 2030))}
        (terms,) = self._vocabulary.terms_of([" ".join(words)])
        impacts = {term: int(self.random.integers(1, 400)) for term in dict.fromkeys(terms)}
        vector = None
        if self.bundle.manifest.dense is not None:
            drawn = self.random.standard_normal(self.bundle.manifest.dimension)
            vector = read_vector(drawn.tolist(), self.bundle.manifest)
        return Row(fields, vector, impacts)

    def change(self) -> Change:
        """A random change, made here too: a new document, another one for an id, other fields, or a deletion."""
        kind = self.random.choice(["new", "replace", "fields", "delete"], p=[0.35, 0.25, 0.15, 0.25])
        known = list(self.rows)
        document_id = f"new-{self.random.integers(50)}" if kind == "new" or not known else self._one(known)
        if kind == "delete":
            self.rows.pop(document_id, None)
            return Change(document_id)
        if kind == "fields" and document_id in self.rows:
            before = self.rows.pop(document_id)  # what is written goes to the end
            fields = before.fields | {"year": int(self.random.integers(1990, 2030))}
            self.rows[document_id] = Row(fields, before.vector, before.impacts)
            return Change(document_id, read_fields(document_id, fields, self.bundle.manifest))
        row = self.document()
        self.rows.pop(document_id, None)
        self.rows[document_id] = row
        return self.whole(document_id)

    def whole(self, document_id: str) -> Change:
        """The change that writes a document of this mirror."""
        row, manifest = self.rows[document_id], self.bundle.manifest
        document = read_fields(document_id, row.fields, manifest)
        return Change(document_id, document, row.vector, read_impacts(row.impacts, manifest, 65_535))

    def rebuilt(self, path: Path) -> Bundle:
        """A bundle of the documents as they are here."""
        return write_again(self.bundle, self._batches(), path, LiveInfo(journal="none", position=0))

    def _one(self, ids: list[str]) -> str:
        return ids[int(self.random.integers(len(ids)))]

    def _batches(self) -> Iterator[EncodedBatch]:
        dense = np.zeros((len(self.rows), 0), np.float32)
        if self.bundle.manifest.dense is not None:
            dense = np.array([row.vector for row in self.rows.values()], np.float32)
        raws = [read_fields(one, row.fields, self.bundle.manifest).raw for one, row in self.rows.items()]
        yield EncodedBatch(list(self.rows), raws, dense, *numbered([row.impacts for row in self.rows.values()]))
