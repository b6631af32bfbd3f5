"""The longest text that a transformer reads: what it says itself, and no more than its table of positions has.

RoBERTa, XLM-RoBERTa and MPNet count positions from the one behind padding, so that 514 hold 512 tokens. Their settings
say 514, and a folder may say nothing or more; a text beyond the table ends the process of a GPU.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch
from lightretriever.artifacts.errors import ModelError
from lightretriever.artifacts.tokens.tokenizer import is_of_library

__all__ = ["cut_at_longest", "longer_than", "positions"]

_TABLES: Final = ("position_embeddings", "embed_positions", "wpe")
"""What the architectures in transformers call a learned table of positions."""


def positions(model: torch.nn.Module) -> int | None:
    """How many tokens the tables of positions of a transformer have rows for; None if it has no such table."""
    found = [
        table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1)
        for name, table in model.named_modules()
        if isinstance(table, torch.nn.Embedding) and name.rpartition(".")[2] in _TABLES
    ]
    return min(found, default=None)


def cut_at_longest(path: str, *modules: Any) -> None:
    """Have modules of sentence-transformers, the first ones of their routes, cut texts at what they can read.

    A module with a table of positions reads one text of that length. Raises ModelError, which names the model's `path`
    and the length, if it fails.
    """
    for module in modules:
        if hasattr(module, "auto_model") and (most := positions(module.auto_model)) is not None:
            stated = module.max_seq_length
            longest = most if stated is None else min(int(stated), most)
            if longest != stated:
                module.max_seq_length = longest
            _read_one(module, longest, path)


def longer_than(longest: int | None, module: Any, texts: Sequence[str]) -> list[bool]:
    """Whether each text has more than `longest` tokens (None: no limit) for a module of sentence-transformers, special
    ones included."""
    if longest is None:
        return [False] * len(texts)
    return [len(ids) > longest for ids in module.tokenizer(list(texts), truncation=False, verbose=False)["input_ids"]]


def _read_one(module: Any, length: int, path: str) -> None:
    token = next(iter(module.tokenizer("a", add_special_tokens=False)["input_ids"]), module.tokenizer.unk_token_id or 0)
    ids = torch.full((1, length), token, device=next(module.parameters()).device)
    try:
        with torch.inference_mode():
            module({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    except BaseException as error:
        if not is_of_library(error):
            raise
        raise ModelError(
            f"{path}: can't read a text of {length} tokens, as long as it says it reads: {error}.",
            remedy="Set max_seq_length in its sentence_bert_config.json to what it can read.",
        ) from error
