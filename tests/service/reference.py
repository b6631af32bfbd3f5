"""What the service must answer, computed with numpy over all documents: no index, no candidate window tricks."""

import numpy as np
import numpy.typing as npt

from lightretriever.artifacts.bundle.reader import Bundle
from tests.support.tiny import tiny_batches, tiny_documents

Scores = npt.NDArray[np.float64]


class Corpus:
    """The tiny bundle as matrices: dense (N, D), impacts (N, V), each task's table (V, D)."""

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
        everything = np.arange(self.tokenizer.vocab_size)
        self.tables = {task: bundle.table(task).rows(everything) for task in bundle.manifest.tasks}

    def dense_scores(self, query: str, task: str = "default") -> Scores:
        mean = self.tables[task][self.tokenizer.query_ids(query)].astype(np.float64).mean(axis=0)
        return np.asarray(self.dense.astype(np.float64) @ (mean / np.linalg.norm(mean)))

    def rank(self, scores: Scores, count: int, *, positive: bool = False) -> list[int]:
        order = sorted(range(len(scores)), key=lambda ordinal: (-scores[ordinal], ordinal))
        return [ordinal for ordinal in order if scores[ordinal] > 0 or not positive][:count]
