"""Document expansion by the token table: the sparse leg gets terms that a document lacks, and weighs those that it has.

The table row of a token t is its part of a query's dense vector, and v_d is the document's, so E_t · v_d is what the
token would add to the dense score. Less its mean over the corpus, it tells the document from others:

    z_d(t) = E_t · v_d − mean over the corpus of E_t · v
    impact_d[t] = round(BM25 impact + λ · u · z_d(t))    for the document's own terms, at least 1,
                                                         and for the k terms of highest z_d

λ is the section's `weight`, k its `terms`. u puts z in units of impacts: the mean BM25 impact of the documents' own
terms over the root mean square of their z, both over a sample of the corpus. The sum of E_t · v_d over a query's tokens
ranks as the dense score does, so nothing is trained. A term that is left out counts as an average one, z = 0.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.bundle.parts import ExpansionInfo
from lightretriever.artifacts.errors import ResumeError
from lightretriever.artifacts.files.workdir import read_json, write_atomically
from lightretriever.artifacts.pipeline.bm25_impacts import ImpactRow, strongest

__all__ = ["Expansion"]

_FILE: Final = "expansion.json"
_AT_ONCE: Final = 256  # documents whose weights for the whole vocabulary are in memory

Matrix = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Expansion:
    """Expands documents by `rows` (V, D) float32. `mean` (D,) float32 is the mean of the corpus' vectors, `unit` is u,
    in impacts."""

    settings: ExpansionInfo
    rows: Matrix
    mean: Matrix
    unit: float

    @classmethod
    def of(
        cls, settings: ExpansionInfo, rows: Matrix, mean: Matrix, vectors: Matrix, sparse: Sequence[ImpactRow]
    ) -> Self:
        """Measure u on a sample of the documents: their vectors (m, D) float32 of length 1, and BM25 impacts."""
        z = [rows[terms] @ (vector - mean) for vector, (terms, _) in zip(vectors, sparse, strict=True)]
        own = np.concatenate([impacts for _, impacts in sparse])
        spread = float(np.sqrt(np.mean(np.concatenate(z).astype(np.float64) ** 2))) if len(own) else 0.0
        return cls(settings, rows, mean, float(own.mean()) / spread if spread else 0.0)

    @property
    def dimension(self) -> int:
        """D."""
        size: int = self.rows.shape[1]
        return size

    def impacts(self, dense: Matrix, sparse: Sequence[ImpactRow]) -> list[ImpactRow]:
        """Expand documents with vectors (n, D) float32 of length 1 and BM25 impacts: n rows."""
        return list(self._rows(dense, sparse))

    def _rows(self, dense: Matrix, sparse: Sequence[ImpactRow]) -> Iterator[ImpactRow]:
        factor, count = self.settings.weight * self.unit, min(self.settings.terms, len(self.rows))
        for start in range(0, len(dense), _AT_ONCE):
            part = (dense[start : start + _AT_ONCE] - self.mean) @ self.rows.T
            for z, (own, impacts) in zip(part, sparse[start : start + _AT_ONCE], strict=True):
                best = np.argpartition(-z, count - 1)[:count]
                terms = np.union1d(own, best[z[best] > 0])
                places, sums = np.searchsorted(terms, own), factor * z[terms].astype(np.float64)
                sums[places] = np.maximum(sums[places] + impacts, 1)
                yield strongest(terms, np.round(sums))

    def save(self, work: Path, corpus_sha256: str) -> None:
        """Keep for documents that come later what was measured on the corpus."""
        content = {"corpus_sha256": corpus_sha256, "table_sha256": self._digest(), "unit": self.unit}
        content["mean"] = self.mean.tolist()
        write_atomically(work / _FILE, json.dumps(content).encode())

    @classmethod
    def read(cls, settings: ExpansionInfo, rows: Matrix, work: Path, corpus_sha256: str | None) -> Self:
        """What `save` kept. Raises ResumeError where the work directory was used for another corpus since, or the table
        was fitted again."""
        kept = read_json(work / _FILE)
        made = cls(settings, rows, np.array(kept["mean"], np.float32), kept["unit"])
        for what, then, now in (
            ("corpus", kept["corpus_sha256"], corpus_sha256),
            ("token table", kept["table_sha256"], made._digest()),
        ):
            if then != now:
                raise ResumeError(
                    f"{work / _FILE}: was measured with another {what} than that of the bundle.",
                    remedy="Run `lightretriever index` with this recipe again, and push the bundle.",
                )
        return made

    def _digest(self) -> str:
        return hashlib.sha256(self.rows.tobytes()).hexdigest()
