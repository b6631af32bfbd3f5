"""Write a model of which a script has unpacked the weights as a folder of sentence-transformers."""

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from tokenizers import Tokenizer

__all__ = ["save_unpacked"]

_TOKENIZER: Final = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "pad_token": "<pad>",
    "unk_token": "<unk>",
    "cls_token": "<s>",
    "sep_token": "</s>",
}


def save_unpacked(
    output: Path,
    weights: dict[str, npt.NDArray[np.float32]],
    config: Mapping[str, Any],
    tokenizer: Tokenizer,
    *,
    length: int,
    pooling: Literal["mean", "cls"],
    prompts: dict[str, str] | None = None,
) -> None:
    """Write `weights`, by the names that transformers has for them, with their `config`, to the folder `output`.

    Texts are cut to `length` tokens of `tokenizer`, whose special tokens are RoBERTa's. Vectors have length 1: the mean
    of a text's states, or its first.
    """
    with TemporaryDirectory() as folder:
        save_file(weights, Path(folder) / "model.safetensors", metadata={"format": "pt"})
        tokenizer.save(str(Path(folder) / "tokenizer.json"))
        for name, content in (
            ("config.json", config),
            ("tokenizer_config.json", _TOKENIZER | {"model_max_length": length}),
        ):
            (Path(folder) / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        reads = Transformer(folder, max_seq_length=length)
        modules = [reads, Pooling(config["hidden_size"], pooling), Normalize()]
        SentenceTransformer(modules=modules, prompts=prompts, device="cpu").save(str(output), create_model_card=False)
