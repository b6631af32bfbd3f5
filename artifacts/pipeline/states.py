"""Hidden states of single query tokens behind an instruction: the three equal ways to get them.

e(t) is the last hidden state at `<eos>` of `[bos] I t <eos>`. `token_states_naive` runs that sequence for every token;
`token_states_packed` runs one sequence `[bos] I [t1 <eos>] [t2 <eos>] …` under a block mask, as training does;
`token_states_cached` computes the keys and values of `[bos] I` once and runs only `t <eos>` behind them, as the
token table is made. Tests hold the three against each other. `token_states` is what training calls.
"""

import torch
from lightretriever.artifacts.errors import ModelError
from lightretriever.artifacts.pipeline.model import Backbone
from transformers import DynamicCache

__all__ = [
    "PrefixCache",
    "attention_masks",
    "block_mask",
    "block_positions",
    "layer_kinds",
    "mlp_states",
    "token_states",
    "token_states_cached",
    "token_states_naive",
    "token_states_packed",
]


def block_mask(
    prefix: int, blocks: int, dtype: torch.dtype, device: torch.device, window: int | None = None
) -> torch.Tensor:
    """Additive attention mask (1, 1, P+2n, P+2n) for `I [t1 <eos>] [t2 <eos>] …`.

    0 where a query position (row) may see a key position (column): the prefix causally, and inside a block the
    block itself causally; the dtype's minimum everywhere else, so that no block sees another. With a `window`, a
    position sees only the last `window` position ids, itself included, as in sliding-window layers.
    """
    length = prefix + 2 * blocks
    index = torch.arange(length, device=device)
    block = torch.where(index < prefix, -1, (index - prefix) // 2)
    causal = index[:, None] >= index[None, :]
    visible = causal & ((block[None, :] == -1) | (block[:, None] == block[None, :]))
    if window is not None:
        places = block_positions(prefix, blocks, device)[0]
        visible &= places[:, None] - places[None, :] < window
    mask = torch.full((length, length), torch.finfo(dtype).min, dtype=dtype, device=device)
    return mask.masked_fill_(visible, 0.0)[None, None]


def block_positions(prefix: int, blocks: int, device: torch.device) -> torch.Tensor:
    """Position ids (1, P+2n): the prefix counts up, every block starts again at P."""
    pairs = torch.arange(2, device=device).repeat(blocks) + prefix
    return torch.cat([torch.arange(prefix, device=device), pairs])[None]


def token_states_naive(backbone: Backbone, prefix: list[int], tokens: torch.Tensor) -> torch.Tensor:
    """e(t) by the plain forward pass of `prefix t <eos>`, one sequence per token. (n,) → (n, H)."""
    head = torch.tensor(prefix, device=backbone.device).expand(len(tokens), -1)
    end = torch.full((len(tokens), 1), backbone.eos_id, device=backbone.device)
    ids = torch.cat([head, tokens.to(backbone.device)[:, None], end], dim=1)
    states: torch.Tensor = backbone.decoder(input_ids=ids, use_cache=False)[0]
    return states[:, -1]


def token_states_packed(
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
    states: torch.Tensor = backbone.decoder(
        input_ids=torch.cat([head, pairs], dim=1),
        attention_mask=_masks(backbone, start, width, batch=rows),
        position_ids=block_positions(start, width, backbone.device).expand(rows, -1),
        use_cache=False,
    )[0]
    return states[:, start + 1 :: 2].reshape(rows * width, -1)[: len(tokens)]


def mlp_states(backbone: Backbone, tokens: torch.Tensor) -> torch.Tensor:
    """The token vectors of an adapter that does without the model, from its embedding layer. (n,) → (n, H) float32."""
    if backbone.token_mlp is None:
        raise ValueError("this model has no token MLP")
    vectors: torch.Tensor = backbone.token_mlp(backbone.model.get_input_embeddings()(tokens.to(backbone.device)))
    return vectors


def token_states(backbone: Backbone, prefix: list[int], tokens: torch.Tensor, row_blocks: int) -> torch.Tensor:
    """The token vectors of a query pass, by the model or by its token MLP. (n,) → (n, H)."""
    if backbone.token_mlp is not None:
        return mlp_states(backbone, tokens)
    return token_states_packed(backbone, prefix, tokens, row_blocks)


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
    states: torch.Tensor = backbone.decoder(
        input_ids=ids,
        attention_mask=_masks(backbone, start, 1, batch=batch, rows=slice(start, None)),
        position_ids=torch.arange(start, start + 2, device=backbone.device).expand(batch, -1),
        past_key_values=cache.expanded(batch),
        use_cache=True,
    )[0]
    return states[:, 1]


def _masks(
    backbone: Backbone, prefix: int, blocks: int, *, batch: int = 1, rows: slice = slice(None)
) -> torch.Tensor | dict[str, torch.Tensor]:
    """The block mask as the model takes it: one, or one per kind of attention layer where it has several kinds."""
    masks = {
        kind: block_mask(prefix, blocks, backbone.model.dtype, backbone.device, window)[:, :, rows].expand(
            batch, -1, -1, -1
        )
        for kind, window in layer_kinds(backbone).items()
    }
    return masks if len(masks) > 1 else next(iter(masks.values()))


def attention_masks(
    backbone: Backbone, visible: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor | dict[str, torch.Tensor]:
    """Additive masks (R, 1, L, L) as the model takes them: one, or one per kind of layer where it has several kinds.

    `visible` (R, L, L) bool: whether a position (row) may see another (column); `positions` (R, L) position ids, which
    the window of sliding-window layers counts. A row that sees nothing has no softmax, so padding must see itself.
    """
    dtype, masks = backbone.model.dtype, {}
    for kind, window in layer_kinds(backbone).items():
        seen = visible if window is None else visible & (positions[:, :, None] - positions[:, None, :] < window)
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
