"""Term thresholds: what a term's logit has to exceed before a text counts as being about it.

A language model's logits were made to be compared with each other at one position. Their maximum over the positions of
a text is positive for nearly the whole vocabulary, and higher for some terms than for others whatever the text says. So
every term gets a threshold of its own, measured once before training: the value that its pooled logit stays below in
most texts of a sample,

    θ_t = max(0, quantile_d max_i x_it),      w_t = ln(1 + ReLU(max_i x_it - θ_t)).

Sparse vectors are sparse from the first step on, and what is left speaks of the text.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from lightretriever.artifacts.pipeline.model import Backbone
from lightretriever.artifacts.pipeline.packing import packed_states
from lightretriever.artifacts.pipeline.sparse_head import pooled_logits
from lightretriever.artifacts.progress import ProgressBar

__all__ = ["term_thresholds"]

_BATCH = 32
_ROW_TOKENS = 512


def term_thresholds(
    backbone: Backbone, texts: Sequence[str], max_length: int, silent: float
) -> npt.NDArray[np.float32]:
    """θ (`embedded`,) float32: what each term's pooled logit doesn't exceed in a share `silent` of `texts`.

    `max_length` tokens of a text are read, special tokens included.
    """
    room = max_length - len(backbone.prefix()) - 1
    encoded = backbone.tokenizer.encode_batch([text[: 64 * max_length] for text in texts])
    sequences = [backbone.frame(ids[:room].tolist()) for ids in encoded]
    logits = torch.empty(len(sequences), backbone.embedded)
    with torch.inference_mode(), ProgressBar("thresholds", total=len(sequences), unit="documents") as progress:
        for start in range(0, len(sequences), _BATCH):
            packed = packed_states(backbone, sequences[start : start + _BATCH], _ROW_TOKENS)
            rows = pooled_logits(packed.hidden, backbone.head, packed.spans)
            logits[start : start + len(rows)] = rows.cpu()
            progress.advance(len(rows))
    rank = max(1, math.ceil(silent * len(sequences)))
    quantile: npt.NDArray[np.float32] = logits.kthvalue(rank, dim=0).values.clamp_min(0).numpy()
    return quantile
