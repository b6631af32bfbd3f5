"""Write a bi-encoder's query side for ONNX Runtime: int8 weights by dynamic quantisation, and its tokenizer.

    python -m research.models.onnx MODEL OUTPUT

MODEL is a folder of sentence-transformers. OUTPUT gets `model.onnx`, which maps `input_ids` and `attention_mask`,
(n, T) int64, to the vectors (n, H), and `tokenizer.json`, which cuts and pads as the model does.
"""

import sys
from argparse import Namespace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer

from lightretriever.artifacts.errors import ModelError
from lightretriever.loadtest.program import option, program
from research.servers.onnx import INPUTS, MODEL, TOKENIZER

_OPSET: Final = 18


class _Vectors(torch.nn.Module):
    """The model's modules one after the other: ids and mask (n, T) to vectors (n, H)."""

    def __init__(self, model: SentenceTransformer) -> None:
        super().__init__()
        self.steps = torch.nn.ModuleList(model)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        features = {"input_ids": input_ids, "attention_mask": attention_mask}
        for step in self.steps:
            features = step(features)
        return features["sentence_embedding"]


def save_onnx(model: Path, output: Path) -> None:
    """Write the folder `output`. Raises ModelError for an encoder with a prompt of its own for queries, or without a
    longest length."""
    weights = {"dtype": torch.float32}  # the exporter knows no bfloat16
    encoder = SentenceTransformer(str(model), device="cpu", local_files_only=True, model_kwargs=weights).eval()
    if encoder.prompts.get("query"):
        raise ModelError(f"{model} has a prompt for queries.", remedy="Give an encoder that reads a query as it is.")
    if encoder.max_seq_length is None:
        raise ModelError(f"{model} has no longest length.", remedy="Name it in sentence_bert_config.json.")
    output.mkdir(parents=True, exist_ok=True)
    read = encoder.tokenizer
    read.backend_tokenizer.save(str(output / TOKENIZER))
    tokenizer = Tokenizer.from_file(str(output / TOKENIZER))
    tokenizer.enable_truncation(encoder.max_seq_length)
    tokenizer.enable_padding(pad_id=read.pad_token_id, pad_token=read.pad_token)
    tokenizer.save(str(output / TOKENIZER))
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    sizes = {name: {0: "n", 1: "t"} for name in INPUTS} | {"vectors": {0: "n"}}
    with TemporaryDirectory() as folder:
        whole = Path(folder) / MODEL
        torch.onnx.export(
            _Vectors(encoder).eval(),
            (torch.ones_like(mask), mask),
            str(whole),
            input_names=list(INPUTS),
            output_names=["vectors"],
            dynamic_axes=sizes,
            opset_version=_OPSET,
            dynamo=False,  # the other exporter takes six times as long, for the same graph
        )
        quantize_dynamic(whole, output / MODEL, per_channel=True, weight_type=QuantType.QInt8)


@program(option("model", Path, "folder of sentence-transformers"), option("output", Path, "folder to write"))
def main(given: Namespace) -> None:
    """Save the model."""
    save_onnx(given.model, given.output)


if __name__ == "__main__":
    sys.exit(main())
