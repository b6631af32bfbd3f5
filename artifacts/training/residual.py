"""Sparse training on top of BM25: the model learns what BM25 lacks, from an ensemble of BM25 and a bi-encoder.

    s(q, d) = a · BM25(q, d) + Σ_t count_q(t) · IDF_t · w_d(t)

    loss = KL(softmax(S · ensemble) ‖ softmax(s / τ)) over all documents of the batch + λ · FLOPS(w)

The ensemble is the weighted mean of BM25 and the teacher's cosines, each min-max normalised over the documents of the
batch. BM25 is over the model's own tokens, with the IDF of the training documents, so that one index holds the sum:
impact = w + a · tf / (tf + k1 (1 - b + b · len / average)), and IDF is the weight of a query's token.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from lightretriever.artifacts.pipeline.encoder import Encoder
from lightretriever.artifacts.pipeline.fit_texts import teacher_vectors
from lightretriever.artifacts.pipeline.model import Backbone
from lightretriever.artifacts.training.contrastive import (
    Tensors,
    backward_in_chunks,
    cut_chunks,
    document_outputs,
    piece_sizes,
    tokenise,
)
from lightretriever.artifacts.training.losses import (
    TokenWeights,
    bm25_scores,
    distillation_loss,
    ensemble,
    flops,
    flops_weight,
    sparse_scores,
)
from lightretriever.artifacts.training.recipe import DataRecipe, ResidualStage
from lightretriever.artifacts.training.types import Batch, StepContext, TrainingSet

__all__ = ["PairVectors", "Residual"]


class PairVectors:
    """The teacher's vectors of the queries and documents of the sets' examples, made once.

    WORK/teachers/SET/{queries,documents}/, in shards (see `files.shards`). A stopped call goes on with the next shard.
    """

    def __init__(self, teacher: Encoder, sets: Sequence[TrainingSet], folder: Path) -> None:
        """Raises ResumeError where the folder holds vectors of another teacher."""
        self._vectors: dict[str, tuple[dict[str, int], npt.NDArray[np.float16]]] = {}
        for one in sets:
            queries = list(dict.fromkeys(example.query for example in one.examples))
            names = dict.fromkeys(name for example in one.examples for name in (example.positive, *example.negatives))
            for kind, keys, texts, instruction in (
                ("queries", queries, queries, ""),
                ("documents", list(names), [one.documents[name] for name in names], None),
            ):
                vectors = teacher_vectors(teacher, texts, instruction, folder / one.name / kind)
                self._vectors[f"{one.name}/{kind}"] = {key: row for row, key in enumerate(keys)}, vectors

    def cosines(self, batch: Batch, names: Sequence[str]) -> torch.Tensor:
        """Of the batch's queries with the documents `names`, (B, M) float32."""
        keys = {"queries": [example.query for example in batch.examples], "documents": names}
        vectors = []
        for kind, wanted in keys.items():
            places, kept = self._vectors[f"{batch.set.name}/{kind}"]
            vectors.append(torch.from_numpy(kept[[places[key] for key in wanted]].astype(np.float32)))
        return vectors[0] @ vectors[1].T


class Residual:
    """The objective of `ResidualStage`. `weights` have the IDF of the training documents, on the model's device,
    `average` is their mean number of tokens."""

    def __init__(
        self,
        backbone: Backbone,
        stage: ResidualStage,
        data: DataRecipe,
        vectors: PairVectors,
        weights: TokenWeights,
        average: float,
    ) -> None:
        self._backbone, self._stage, self._data, self._vectors = backbone, stage, data, vectors
        self._idf, self._average = weights.idf, average
        self._chunk_tokens, self._row_tokens = piece_sizes(stage, backbone.device)

    def backward(self, batch: Batch, context: StepContext) -> dict[str, float]:
        """Add one step's gradients; returns the parts of the loss."""
        backbone, stage = self._backbone, self._stage
        layout, sequences, _ = tokenise(backbone, batch, self._data)
        names = list(dict.fromkeys(name for candidates in batch.candidates for name in candidates))
        frame = len(backbone.prefix())
        plain = bm25_scores(layout.queries, [ids[frame:-1] for ids in sequences], self._idf, self._average)
        weights = torch.tensor([1 - stage.share, stage.share])
        target = ensemble(torch.stack([plain, self._vectors.cosines(batch, names)]), weights, stage.scale)
        target, positives = target.to(backbone.device), layout.positives

        def objective(leaves: Tensors) -> tuple[Tensors, dict[str, float]]:
            found = sparse_scores(layout.queries, leaves["sparse"], self._idf)
            scores = stage.bm25 * plain.to(found.device) + found
            losses = {
                "ensemble": distillation_loss(scores / stage.temperature, target),
                "flops": flops_weight(stage.flops, context) * flops(leaves["sparse"]),
            }
            logged = {"terms": float((leaves["sparse"] > 0).float().sum(dim=1).mean())}
            for name, one in (("bm25", plain), ("sparse", scores.detach().cpu()), ("target", target.cpu())):
                logged[f"{name}_accuracy"] = float((one.argmax(dim=1) == positives).float().mean())
            return losses, logged

        def documents_of(part: slice) -> Tensors:
            return {"sparse": document_outputs(backbone, sequences[part], self._row_tokens)["sparse"]}

        chunks = list(cut_chunks([len(one) for one in sequences], self._chunk_tokens, documents_of, context))
        return backward_in_chunks(chunks, self._chunk_tokens, context, backbone.device, objective)
