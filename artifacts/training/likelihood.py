"""The query-likelihood stage: L = -Σ_i ln P(q_i | d̃, q_1 … q_{i-1}), mean over the queries.

This is equation 8 of the LLM-QL paper; d̃ is a document of which most tokens are masked.
"""

from dataclasses import dataclass

import numpy as np

from lightretriever.artifacts.errors import RecipeError
from lightretriever.artifacts.pipeline.language_model import Reading, log_likelihoods
from lightretriever.artifacts.pipeline.model import Backbone
from lightretriever.artifacts.training.contrastive import ROW_TOKENS
from lightretriever.artifacts.training.engine import Engine
from lightretriever.artifacts.training.mixture import Batch, StepContext, Tensors
from lightretriever.artifacts.training.recipe import DataRecipe, LikelihoodStage


@dataclass(frozen=True)
class Likelihood:
    """The objective of `LikelihoodStage`: pairs of a query and its relevant document, without negatives."""

    engine: Engine
    backbone: Backbone
    stage: LikelihoodStage
    data: DataRecipe

    def backward(self, batch: Batch, context: StepContext) -> dict[str, float]:
        """Add one step's gradients; returns the loss, and the loss of a token. Raises RecipeError where the prompts
        leave a document no room."""
        backbone, data, stage = self.backbone, self.data, self.stage
        reading = Reading(stage.before, stage.after, stage.block)
        if (frame := len(reading.frame(backbone, []))) >= data.max_document_length:
            raise RecipeError(
                f"data.max_document_length is {data.max_document_length}, but the prompts of query_likelihood have "
                f"{frame} tokens.",
                remedy="Raise it, or shorten the prompts.",
            )
        marks = backbone.tokenizer.encode("_").tolist()
        mask = marks[0] if len(marks) == 1 else backbone.eos_id
        texts = [batch.set.documents[example.positive] for example in batch.examples]
        random = np.random.default_rng((context.seed % 2**64, context.batch))
        read = reading.document_ids(backbone, texts, data.max_document_length)
        documents = [corrupted(ids, stage.corruption, mask, random) for ids in read]
        found = backbone.tokenizer.encode_batch([example.query for example in batch.examples])
        queries = [ids[: data.max_query_length].tolist() for ids in found]
        lengths = [frame + len(ids) + len(query) for ids, query in zip(documents, queries, strict=True)]

        def likelihoods_of(part: slice) -> Tensors:
            made = log_likelihoods(backbone, reading, documents[part], queries[part], ROW_TOKENS)
            return {"likelihood": made[:, None]}

        def objective(leaves: Tensors) -> tuple[Tensors, dict[str, float]]:
            loss = -leaves["likelihood"].mean()
            tokens = sum(map(len, queries)) / len(queries)
            return {"query_likelihood": loss}, {"loss_of_token": float(loss.detach()) / max(tokens, 1)}

        chunks = list(self.engine.chunks(lengths, likelihoods_of, items="queries"))
        return self.engine.backward(chunks, context, objective)


def corrupted(ids: list[int], share: float, mask: int, random: np.random.Generator) -> list[int]:
    """A document's token ids, each replaced by `mask` with the probability `share`."""
    drawn = random.random(len(ids)) < share
    return [mask if hidden else token for token, hidden in zip(ids, drawn.tolist(), strict=True)]
