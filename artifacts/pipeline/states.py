"""Hidden states of many short texts in few forward passes: whole texts, and single query tokens behind an instruction.

Texts share rows under a mask that keeps them apart. e(t) is the last hidden state at `<eos>` of `[bos] I t <eos>`; a
row of tokens is `[bos] I [t1 <eos>] [t2 <eos>] …`, where every block sees the instruction and itself. Where attention
is causal, both equal one pass per text. Where it is bidirectional, a position also sees the later ones of its text or
block, and the instruction doesn't see the blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lightretriever.artifacts.errors import ModelError
from lightretriever.artifacts.pipeline.model import Backbone

SHARED = -1
"""The owner of positions that all later ones in a row see."""

_ROW_BLOCKS = 128
"""Tokens that share a row: longer rows repeat the prefix less often, shorter ones spend less on masked attention."""

_WIDTH_STEP = 64
"""Several rows are as wide as a multiple of this, so that attention kernels meet few different shapes."""


def token_states(backbone: Backbone, prefix: list[int], tokens: torch.Tensor) -> torch.Tensor:
    """e(t) of all tokens behind `prefix`, of one token or more, in one forward pass. (n,) → (n, `vector_size`)."""
    width, start, device = min(_ROW_BLOCKS, len(tokens)), len(prefix), backbone.device
    rows = -(-len(tokens) // width)
    padded = torch.full((rows * width, 2), backbone.eos_id, device=device)
    padded[: len(tokens), 0] = tokens.to(device)
    head = torch.tensor(prefix, device=device).expand(rows, -1)
    block = torch.arange(2 * width, device=device)
    owners = torch.cat([torch.full((start,), SHARED, device=device), block // 2])
    positions = torch.cat([torch.arange(start, device=device), start + block % 2])
    ids = torch.cat([head, padded.view(rows, 2 * width)], dim=1)
    states = _states(backbone, ids, owners.expand(rows, -1), positions.expand(rows, -1))
    return backbone.dense(states[:, start:].reshape(rows * width, 2, -1)[: len(tokens)])


def _states(
    backbone: Backbone,
    ids: torch.Tensor,
    owners: torch.Tensor,
    positions: torch.Tensor,
    firsts: torch.Tensor | None = None,
) -> torch.Tensor:
    """Last hidden states (R, L, H) of rows of texts: token ids, owners, position ids, and the first position of the row
    that each position sees, (R, L) int64 each."""
    masks = _masks(backbone, visible(owners, both_ways=backbone.attention == "bidirectional", firsts=firsts), positions)
    read = backbone.decoder(input_ids=ids, attention_mask=masks, position_ids=positions, use_cache=False)
    states: torch.Tensor = read[0]
    return states


def visible(owners: torch.Tensor, *, both_ways: bool = False, firsts: torch.Tensor | None = None) -> torch.Tensor:
    """True if a position (row) sees another (column), (R, L) → (R, L, L) bool: itself, and those of the same owner and
    SHARED ones that stand before it or, with `both_ways`, anywhere; none before the first (R, L) that it sees."""
    same = owners[:, :, None] == owners[:, None, :]
    seen: torch.Tensor = same | (owners == SHARED)[:, None, :]
    index = torch.arange(owners.shape[1], device=owners.device)
    if firsts is not None:
        seen = seen & (index >= firsts[:, :, None])
    return seen if both_ways else seen & (index[:, None] >= index)


def _masks(backbone: Backbone, seen: torch.Tensor, positions: torch.Tensor) -> torch.Tensor | dict[str, torch.Tensor]:
    """Additive masks (R, 1, L, L) as the model takes them: one, or one per kind of layer where it has several kinds. Of
    what a position sees, a sliding window leaves the last position ids. Padding sees itself, as softmax needs."""
    dtype, masks = backbone.model.dtype, {}
    distances = (positions[:, :, None] - positions[:, None, :]).abs()
    for kind, window in layer_kinds(backbone).items():
        inside = seen if window is None else seen & (distances < window)
        mask = torch.full(inside.shape, torch.finfo(dtype).min, dtype=dtype, device=inside.device)
        masks[kind] = mask.masked_fill_(inside, 0.0)[:, None]
    return masks if len(masks) > 1 else next(iter(masks.values()))


def layer_kinds(backbone: Backbone) -> dict[str, int | None]:
    """The model's kinds of attention layers with their window. Raises ModelError for kinds no mask can stand for."""
    config = backbone.model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    default = "full_attention" if window is None else "sliding_attention"
    kinds = set(getattr(config, "layer_types", None) or [default])
    unknown = kinds - {"full_attention", "sliding_attention"}
    if unknown:
        raise ModelError(
            f"{backbone.name} has layers of kind {', '.join(sorted(unknown))}; only full and sliding attention can be "
            "restricted to single tokens.",
            remedy="Use a model with attention layers alone, such as Llama, Qwen2, Qwen3 or Gemma.",
        )
    return {kind: window if kind == "sliding_attention" else None for kind in sorted(kinds)}


@dataclass(frozen=True)
class PackedStates:
    """Last hidden states of packed texts: `hidden` (N, H), text i being its positions `spans[i]`, end exclusive."""

    hidden: torch.Tensor
    spans: list[tuple[int, int]]

    def dense(self, backbone: Backbone, skip: int | None = None) -> torch.Tensor:
        """The dense vector of every text, (texts, `vector_size`), not normalised: of its state at the end, or of the
        mean, in float32, of those behind the first `skip` ones (None: behind `[bos]`)."""
        device = self.hidden.device
        if backbone.pooling == "end":
            last = torch.tensor([end - 1 for _, end in self.spans], device=device)
            return backbone.dense(self.hidden[last][:, None])
        first = len(backbone.prefix()) if skip is None else skip
        lengths = [end - begin - first for begin, end in self.spans]
        places = np.concatenate([np.arange(begin + first, end) for begin, end in self.spans])
        texts = np.repeat(np.arange(len(lengths)), lengths)
        states = self.hidden[torch.from_numpy(places).to(device)].float()
        sums = states.new_zeros(len(lengths), states.shape[1])
        sums = sums.index_add(0, torch.from_numpy(texts).to(device), states)
        return backbone.dense((sums / torch.tensor(lengths, device=device)[:, None])[:, None])


def pack(lengths: Sequence[int], row_tokens: int) -> list[list[int]]:
    """Texts (by index) in rows of at most `row_tokens` positions, by best fit decreasing; a longer text gets a row of
    its own."""
    rows, room = list[list[int]](), list[int]()
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        fitting = [row for row, left in enumerate(room) if left >= lengths[index]]
        row = min(fitting, key=room.__getitem__, default=len(rows))
        if not fitting:
            rows.append([])
            room.append(max(row_tokens, lengths[index]))
        rows[row].append(index)
        room[row] -= lengths[index]
    return rows


def packed_states(
    backbone: Backbone, sequences: Sequence[Sequence[int]], row_tokens: int, blocks: Sequence[int] | None = None
) -> PackedStates:
    """Last hidden states of framed `sequences` of token ids, in one forward pass of packed rows.

    With `blocks`, the positions of text i behind position `blocks[i]` see that one and those behind it alone.
    """
    rows = pack([len(sequence) for sequence in sequences], row_tokens)
    width = max(sum(len(sequences[index]) for index in row) for row in rows)
    if len(rows) > 1:
        width = -(-width // _WIDTH_STEP) * _WIDTH_STEP
    ids = np.full((len(rows), width), backbone.eos_id)
    owners = np.full((len(rows), width), len(sequences))  # which text a position belongs to; the last is padding
    positions, firsts = (np.zeros((len(rows), width), dtype=np.int64) for _ in range(2))
    spans: list[tuple[int, int]] = [(0, 0)] * len(sequences)
    for number, row in enumerate(rows):
        start = 0
        for index in row:
            end = start + len(sequences[index])
            ids[number, start:end] = sequences[index]
            owners[number, start:end] = index
            positions[number, start:end] = np.arange(end - start)
            if blocks is not None:
                firsts[number, start + blocks[index] + 1 : end] = start + blocks[index]
            spans[index] = (number * width + start, number * width + end)
            start = end
    parts = (ids, owners, positions, *(() if blocks is None else (firsts,)))
    states = _states(backbone, *(torch.from_numpy(part).to(backbone.device) for part in parts))
    return PackedStates(states.flatten(0, 1), spans)
