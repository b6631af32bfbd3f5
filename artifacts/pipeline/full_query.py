"""Queries through the full model: the symmetric counterpart of the token table, the upper bound it is compared with.

Dense: the state at `<eos>` of `[bos] I q <eos>`. Sparse: max over the positions of q and `<eos>` of ln(1 + ReLU(h·P)),
as documents have it, of which the strongest terms are kept: a model that isn't trained yet finds all of its vocabulary
a little likely. Nothing of this runs in the query path of the service.
"""

import numpy as np
import numpy.typing as npt
import torch
from lightretriever.artifacts.pipeline.model import Backbone
from lightretriever.artifacts.pipeline.sparse_head import sparse_weights
from lightretriever.artifacts.pipeline.states import packed_states
from lightretriever.artifacts.pipeline.table import instruction_prefix
from lightretriever.artifacts.progress import ProgressBar

__all__ = ["FULL_QUERY_TERMS", "full_query_states", "full_query_vectors"]

#: Sparse terms kept of a query.
FULL_QUERY_TERMS = 64
_BATCH = 64
_ROW_TOKENS = 256


def full_query_states(
    backbone: Backbone, prefix: list[int], queries: list[list[int]], row_tokens: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Dense states (B, H), not normalised, and sparse weights (B, V) float32 of tokenised queries behind `prefix`."""
    packed = packed_states(backbone, [[*prefix, *query, backbone.eos_id] for query in queries], row_tokens)
    spans = backbone.sparse_spans(packed.spans, len(prefix))
    weights = sparse_weights(packed.hidden, backbone.head, spans, backbone.thresholds)
    strongest, terms = weights.topk(min(FULL_QUERY_TERMS, weights.shape[1]), dim=1)
    return packed.dense(backbone, len(prefix)), torch.zeros_like(weights).scatter(1, terms, strongest)


def full_query_vectors(
    backbone: Backbone, instruction: str, queries: list[str], progress: ProgressBar | None = None
) -> tuple[npt.NDArray[np.float32], list[tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]]]:
    """Vectors of queries by the full model: dense (n, H) float32, L2-normalised, and per query terms and weights > 0.

    The sparse vector is term ids int32, ascending, with weights float32, as documents have it before quantisation.
    """
    prefix = instruction_prefix(backbone, instruction)
    encoded = [ids.tolist() for ids in backbone.tokenizer.encode_batch(queries)]
    dense = np.empty((len(queries), backbone.vector_size), dtype=np.float32)
    sparse: list[tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]] = []
    with torch.inference_mode():
        for start in range(0, len(encoded), _BATCH):
            part = encoded[start : start + _BATCH]
            states, weights = full_query_states(backbone, prefix, part, _ROW_TOKENS)
            normalised = torch.nn.functional.normalize(states.float(), dim=1)
            dense[start : start + len(part)] = normalised.cpu().numpy()
            for row in weights:
                terms = row.nonzero()[:, 0]
                sparse.append((terms.cpu().numpy().astype(np.int32), row[terms].cpu().numpy()))
            if progress is not None:
                progress.advance(len(part))
    return dense, sparse
