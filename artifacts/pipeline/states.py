"""Hidden states of single query tokens behind an instruction.

e(t) is the last hidden state at `<eos>` of `[bos] I t <eos>`. Training packs tokens, `[bos] I [t1 <eos>] [t2 <eos>] …`,
under a mask that separates them. The token table computes keys and values of `[bos] I` once, and runs only `t <eos>`
behind them. Both equal one pass per token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from lightretriever.artifacts.errors import ModelError
from lightretriever.artifacts.pipeline.model import Backbone
from transformers import DynamicCache

__all__ = [
    "PackedStates",
    "PrefixCache",
    "Row",
    "attention_masks",
    "block_positions",
    "block_visible",
    "layer_kinds",
    "pack",
    "packed_states",
    "token_states",
    "token_states_cached",
]


def block_visible(prefix: int, blocks: int, device: torch.device) -> torch.Tensor:
    """Whether a position (row) sees another (column) in `I [t1 <eos>] [t2 <eos>] …`: (P+2n, P+2n) bool.

    It sees the prefix and its own block causally, and no other block.
    """
    index = torch.arange(prefix + 2 * blocks, device=device)
    block = torch.where(index < prefix, -1, (index - prefix) // 2)
    return (index[:, None] >= index) & ((block == -1) | (block[:, None] == block))


def block_positions(prefix: int, blocks: int, device: torch.device) -> torch.Tensor:
    """Position ids (1, P+2n): the prefix counts up, every block starts again at P."""
    pairs = torch.arange(2, device=device).repeat(blocks) + prefix
    return torch.cat([torch.arange(prefix, device=device), pairs])[None]


def token_states(
    backbone: Backbone, prefix: list[int], tokens: torch.Tensor, row_blocks: int | None = None
) -> torch.Tensor:
    """e(t) of all tokens by one forward pass under the block mask. (n,) → (n, H).

    `row_blocks` tokens share a sequence (None: all of them, in one): longer sequences repeat the prefix less often,
    shorter ones spend less on masked attention.
    """
    width, start = min(row_blocks or len(tokens), len(tokens)), len(prefix)
    rows = -(-len(tokens) // width)
    padded = torch.full((rows * width,), backbone.eos_id, device=backbone.device)
    padded[: len(tokens)] = tokens.to(backbone.device)
    pairs = torch.stack([padded, torch.full_like(padded, backbone.eos_id)], dim=1).view(rows, 2 * width)
    head = torch.tensor(prefix, device=backbone.device, dtype=pairs.dtype).expand(rows, -1)
    visible = block_visible(start, width, backbone.device)
    positions = block_positions(start, width, backbone.device).expand(rows, -1)
    states: torch.Tensor = backbone.decoder(
        input_ids=torch.cat([head, pairs], dim=1),
        attention_mask=attention_masks(backbone, visible.expand(rows, -1, -1), positions),
        position_ids=positions,
        use_cache=False,
    )[0]
    return backbone.dense(states[:, start:].reshape(rows * width, 2, -1)[: len(tokens)])


class PrefixCache:
    """Keys and values of `[bos] I`, computed once for all tokens."""

    def __init__(self, backbone: Backbone, prefix: list[int]) -> None:
        if not prefix:
            raise ValueError("a prefix needs at least one token")
        ids = torch.tensor([prefix], device=backbone.device)
        cache = backbone.decoder(input_ids=ids, use_cache=True, past_key_values=DynamicCache())[1]
        self._layers = [(layer.keys, layer.values) for layer in cache.layers]
        self.length = len(prefix)

    def expanded(self, batch: int) -> DynamicCache:
        """A fresh cache of `batch` rows (the model appends to it): B copies of the prefix's keys and values."""
        cache = DynamicCache()
        for index, (keys, values) in enumerate(self._layers):
            cache.update(keys.expand(batch, -1, -1, -1), values.expand(batch, -1, -1, -1), index)
        return cache


def token_states_cached(backbone: Backbone, cache: PrefixCache, tokens: torch.Tensor) -> torch.Tensor:
    """e(t) by two positions per token behind the cached prefix. (n,) → (n, H)."""
    batch, start = len(tokens), cache.length
    end = torch.full((batch, 1), backbone.eos_id, device=backbone.device)
    ids = torch.cat([tokens.to(backbone.device)[:, None], end], dim=1)
    visible = block_visible(start, 1, backbone.device)[start:].expand(batch, -1, -1)
    keys = torch.arange(start + 2, device=backbone.device).expand(batch, -1)
    states: torch.Tensor = backbone.decoder(
        input_ids=ids,
        attention_mask=attention_masks(backbone, visible, keys[:, start:], keys),
        position_ids=keys[:, start:],
        past_key_values=cache.expanded(batch),
        use_cache=True,
    )[0]
    return backbone.dense(states)


def attention_masks(
    backbone: Backbone, visible: torch.Tensor, positions: torch.Tensor, keys: torch.Tensor | None = None
) -> torch.Tensor | dict[str, torch.Tensor]:
    """Additive masks (R, 1, L, M) as the model takes them: one, or one per kind of layer where it has several kinds.

    `visible` (R, L, M) bool: whether a position (row) may see another (column). `positions` (R, L) and `keys` (R, M;
    None: the same) are their position ids, of which a sliding window sees only the last ones. A row that sees nothing
    has no softmax, so padding must see itself.
    """
    dtype, masks = backbone.model.dtype, {}
    distances = positions[:, :, None] - (positions if keys is None else keys)[:, None, :]
    for kind, window in layer_kinds(backbone).items():
        seen = visible if window is None else visible & (distances < window)
        mask = torch.full(seen.shape, torch.finfo(dtype).min, dtype=dtype, device=seen.device)
        masks[kind] = mask.masked_fill_(seen, 0.0)[:, None]
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


Row = list[int]

#: Rows are as wide as a multiple of this, so that attention kernels meet few different shapes.
_WIDTH_STEP = 64


@dataclass(frozen=True)
class PackedStates:
    """Last hidden states of packed texts: `hidden` (N, H), text i being its positions `spans[i]`, end exclusive."""

    hidden: torch.Tensor
    spans: list[tuple[int, int]]

    def dense(self, backbone: Backbone, skip: int | None = None) -> torch.Tensor:
        """The dense vector of every text, (texts, `vector_size`), not normalised.

        `skip` positions at the beginning are no part of the text (None: `[bos]`).
        """
        first = len(backbone.prefix()) if skip is None else skip
        if backbone.pooling == "end":
            last = torch.tensor([end - 1 for _, end in self.spans], device=self.hidden.device)
            return backbone.dense(self.hidden[last][:, None])
        means = [self.hidden[begin + first : end].mean(dim=0) for begin, end in self.spans]
        return backbone.dense(torch.stack(means)[:, None])


def pack(lengths: Sequence[int], row_tokens: int) -> list[Row]:
    """Texts (by index) in rows of at most `row_tokens` positions; a longer text gets a row of its own.

    Best fit decreasing: every text goes to the fullest row that still has room.
    """
    rows: list[Row] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        fitting = [row for row, left in enumerate(room) if left >= lengths[index]]
        if fitting:
            row = min(fitting, key=lambda row: room[row])
        else:
            row = len(rows)
            rows.append([])
            room.append(max(row_tokens, lengths[index]))
        rows[row].append(index)
        room[row] -= lengths[index]
    return rows


def packed_states(backbone: Backbone, sequences: Sequence[Sequence[int]], row_tokens: int) -> PackedStates:
    """Last hidden states of framed `sequences` of token ids, in one forward pass of packed rows."""
    rows = pack([len(sequence) for sequence in sequences], row_tokens)
    width = max(sum(len(sequences[index]) for index in row) for row in rows)
    width = -(-width // _WIDTH_STEP) * _WIDTH_STEP
    ids = torch.full((len(rows), width), backbone.eos_id)
    owners = torch.full((len(rows), width), -1)  # which text a position belongs to; -1 is padding
    positions = torch.zeros((len(rows), width), dtype=torch.long)
    spans: list[tuple[int, int]] = [(0, 0)] * len(sequences)
    for number, row in enumerate(rows):
        start = 0
        for index in row:
            end = start + len(sequences[index])
            ids[number, start:end] = torch.tensor(sequences[index])
            owners[number, start:end] = index
            positions[number, start:end] = torch.arange(end - start)
            spans[index] = (number * width + start, number * width + end)
            start = end
    device = backbone.device
    states: torch.Tensor = backbone.decoder(
        input_ids=ids.to(device),
        attention_mask=_masks(backbone, owners.to(device), positions.to(device)),
        position_ids=positions.to(device),
        use_cache=False,
    )[0]
    return PackedStates(states.flatten(0, 1), spans)


def _masks(backbone: Backbone, owners: torch.Tensor, positions: torch.Tensor) -> torch.Tensor | dict[str, torch.Tensor]:
    """Masks that are causal and stay inside one text; padding, which has one owner, sees padding."""
    index = torch.arange(owners.shape[1], device=owners.device)
    visible = (owners[:, :, None] == owners[:, None, :]) & (index[:, None] >= index[None, :])
    return attention_masks(backbone, visible, positions)
