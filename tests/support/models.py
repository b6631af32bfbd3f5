"""Tiny real transformers, saved as Hugging Face directories, and the plain ways to their states and weights, with which
the fast ones are compared."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, processors
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

from lightretriever.artifacts.pipeline.language_model import sparse_weights
from lightretriever.artifacts.pipeline.model import Backbone, load_model
from lightretriever.artifacts.pipeline.recipe import ModelRecipe
from tests.support.tiny import tiny_documents, train_tokenizer

SHAPE: dict[str, int] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
CONFIGS: dict[str, Callable[..., PreTrainedConfig]] = {
    "llama": LlamaConfig,
    "qwen2": Qwen2Config,
    "gemma": lambda **shape: GemmaConfig(head_dim=8, **shape),
    "gemma3": lambda **shape: Gemma3TextConfig(
        head_dim=8, sliding_window=8, layer_types=["sliding_attention", "full_attention", "sliding_attention"], **shape
    ),
}


def load(path: Path, *, layers: int | None = None, **settings: Any) -> Backbone:
    """Load a model on the CPU, with these settings of a recipe."""
    return load_model(ModelRecipe(**{"path": str(path), "device": "cpu", **settings}), layers=layers)


def save_model(folder: Path, kind: str, *, bos_token: str | None = "<|im_start|>") -> Path:
    """Save a seeded random model of the given family, with a real tokenizer, and return its folder."""
    folder.mkdir(parents=True)
    train_tokenizer(folder / "tokenizer.json", [document.full_text for document in tiny_documents(40)])
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = {name: tokenizer.token_to_id(token) for name, token in (("bos", "<|im_start|>"), ("eos", "<|im_end|>"))}
    config = CONFIGS[kind](
        vocab_size=tokenizer.get_vocab_size() + 5,  # as in real models: more rows than ids
        bos_token_id=ids["bos"],
        eos_token_id=ids["eos"],
        pad_token_id=0,
        tie_word_embeddings=False,
        initializer_range=0.4,  # the usual 0.02 makes all states of so small a model alike
        **SHAPE,
    )
    torch.manual_seed(7)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    if bos_token is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos_token} $A", special_tokens=[(bos_token, tokenizer.token_to_id(bos_token))]
        )
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=bos_token, eos_token="<|im_end|>").save_pretrained(
        folder
    )
    return folder


def write_corpus(path: Path, count: int) -> Path:
    """A BEIR corpus file of the tiny documents."""
    lines = [json.dumps(json.loads(document.raw)) for document in tiny_documents(count)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def token_states_naive(backbone: Backbone, prefix: list[int], tokens: torch.Tensor) -> torch.Tensor:
    """e(t) by the plain forward pass of `prefix t <eos>`, one sequence per token. (n,) → (n, H)."""
    head = torch.tensor(prefix, device=backbone.device).expand(len(tokens), -1)
    end = torch.full((len(tokens), 1), backbone.eos_id, device=backbone.device)
    ids = torch.cat([head, tokens.to(backbone.device)[:, None], end], dim=1)
    states: torch.Tensor = backbone.decoder(input_ids=ids, use_cache=False)[0]
    return states[:, -1]


def padded_weights(hidden: torch.Tensor, head: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """`sparse_weights` of right-padded states (B, T, H), of which the first `lengths` (B,) of each row count."""
    spans = [(row * hidden.shape[1], row * hidden.shape[1] + length) for row, length in enumerate(lengths.tolist())]
    return sparse_weights(hidden.flatten(0, 1), head, spans)
