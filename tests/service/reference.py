"""What the service must answer, computed with numpy over all documents: no index, no candidate window tricks."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.bundle.reader import Bundle

from tests.support.tiny import tiny_batches, tiny_documents

Scores = npt.NDArray[np.float64]


@dataclass
class Expected:
    """A ranking: ids best first, fused scores, scores of each leg."""

    ids: list[str]
    scores: list[float]
    dense: list[float]
    sparse: list[float]


class Corpus:
    """The tiny bundle as matrices: dense (N, D), impacts (N, V), each task's table (V, D), IDF (V,) or None."""

    def __init__(self, bundle: Bundle) -> None:
        self.tokenizer = bundle.tokenizer()
        self.documents = tiny_documents()
        self.dense = np.empty((0, bundle.manifest.dimension), np.float32)
        self.impacts = np.zeros((len(self.documents), self.tokenizer.vocab_size))
        row = 0
        for batch in tiny_batches(self.documents, self.tokenizer):
            self.dense = np.concatenate([self.dense, batch.dense])
            for start, end in zip(batch.indptr[:-1], batch.indptr[1:], strict=True):
                self.impacts[row, batch.terms[start:end]] = batch.impacts[start:end]
                row += 1
        self.idf = bundle.idf()
        everything = np.arange(self.tokenizer.vocab_size)
        self.tables = {task: bundle.table(task).rows(everything) for task in bundle.manifest.tasks}

    def dense_scores(self, query: str, task: str = "default") -> Scores:
        mean = self.tables[task][self.tokenizer.query_ids(query)].astype(np.float64).mean(axis=0)
        return np.asarray(self.dense.astype(np.float64) @ (mean / np.linalg.norm(mean)))

    def sparse_scores(self, query: str) -> Scores:
        """Each product is a float32, the sum of them is rounded to one; with counts nothing needs rounding."""
        counts = np.bincount(self.tokenizer.query_ids(query), minlength=self.tokenizer.vocab_size)
        weights = counts.astype(np.float32) * (1 if self.idf is None else self.idf)
        products = self.impacts.astype(np.float32) * weights.astype(np.float32)
        return np.asarray(products.sum(axis=1, dtype=np.float64).astype(np.float32), np.float64)

    def rank(self, scores: Scores, count: int, *, positive: bool = False) -> list[int]:
        order = sorted(range(len(scores)), key=lambda ordinal: (-scores[ordinal], ordinal))
        return [ordinal for ordinal in order if scores[ordinal] > 0 or not positive][:count]

    def hybrid(self, query: str, candidates: int, weights: tuple[float, float], method: str) -> Expected:
        legs = (self.dense_scores(query), self.sparse_scores(query))
        proposed = (self.rank(legs[0], candidates), self.rank(legs[1], candidates, positive=True))
        union = sorted({*proposed[0], *proposed[1]})
        fused = dict.fromkeys(union, 0.0)
        for weight, scores, own in zip(weights, legs, proposed, strict=True):
            pool = union if method == "range" else own
            low, high = min(scores[pool]), max(scores[pool])
            for ordinal in union:
                if method == "rrf":
                    fused[ordinal] += weight / (60 + own.index(ordinal) + 1) if ordinal in own else 0.0
                elif method == "range":
                    fused[ordinal] += weight * (0.001 + 0.999 * (scores[ordinal] - low) / (high - low))
                elif ordinal in own:
                    fused[ordinal] += weight * (scores[ordinal] - low) / (high - low)
        order = sorted(union, key=lambda ordinal: (-fused[ordinal], ordinal))
        return Expected(
            ids=[self.documents[ordinal].id for ordinal in order],
            scores=[fused[ordinal] for ordinal in order],
            dense=[float(legs[0][ordinal]) for ordinal in order],
            sparse=[float(legs[1][ordinal]) for ordinal in order],
        )
