"""The service with a bi-encoder in its query path, by ONNX Runtime: int8 weights, one thread, waiting queries batched.

    python -m research.servers.onnx BUNDLE --model MODEL --work FOLDER [--threads 1] [--batch 16] --port 0

MODEL is a folder of sentence-transformers. `--build` writes its query side to FOLDER/onnx: `model.onnx`, which maps
`input_ids` and `attention_mask`, (n, T) int64, to the vectors (n, H), and `tokenizer.json`, which cuts and pads as the
model does. Indexes, fusion and HTTP are those of `lightretriever.loadtest.model_server`.
"""

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
import numpy.typing as npt
from onnxruntime import InferenceSession, SessionOptions
from tokenizers import Tokenizer

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import ModelError
from lightretriever.loadtest.model_server import OPTIONS, Encode, joined, serve_model
from lightretriever.loadtest.program import option, program
from lightretriever.service.backends.base import EncodedQuery
from lightretriever.service.search.encoder import QueryEncoder

__all__ = ["OnnxEncoder", "main", "onnx_encoder", "save_onnx"]

_MODEL: Final = "model.onnx"
_TOKENIZER: Final = "tokenizer.json"
_INPUTS: Final = ("input_ids", "attention_mask")
_OPSET: Final = 18


def save_onnx(model: Path, output: Path) -> None:
    """Write the folder `output`. Raise ModelError for an encoder with a prompt of its own for queries, or without a
    longest length."""
    import torch  # a server needs none of these
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from sentence_transformers import SentenceTransformer

    weights = {"dtype": torch.float32}  # the exporter knows no bfloat16
    encoder = SentenceTransformer(str(model), device="cpu", local_files_only=True, model_kwargs=weights).eval()
    if encoder.prompts.get("query"):
        raise ModelError(f"{model} has a prompt for queries.", remedy="Give an encoder that reads a query as it is.")
    if encoder.max_seq_length is None:
        raise ModelError(f"{model} has no longest length.", remedy="Name it in sentence_bert_config.json.")

    class Vectors(torch.nn.Module):
        """Maps ids and mask (n, T) to vectors (n, H)."""

        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            features = {"input_ids": input_ids, "attention_mask": attention_mask}
            vectors: torch.Tensor = self.encoder(features)["sentence_embedding"]
            return vectors

    output.mkdir(parents=True, exist_ok=True)
    read = encoder.tokenizer
    read.backend_tokenizer.save(str(output / _TOKENIZER))
    tokenizer = Tokenizer.from_file(str(output / _TOKENIZER))
    tokenizer.enable_truncation(encoder.max_seq_length)
    tokenizer.enable_padding(pad_id=read.pad_token_id, pad_token=read.pad_token)
    tokenizer.save(str(output / _TOKENIZER))
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    with TemporaryDirectory() as folder:
        whole = Path(folder) / _MODEL
        torch.onnx.export(
            Vectors().eval(),
            (torch.ones_like(mask), mask),
            str(whole),
            input_names=list(_INPUTS),
            output_names=["vectors"],
            dynamic_axes={name: {0: "n", 1: "t"} for name in _INPUTS} | {"vectors": {0: "n"}},
            opset_version=_OPSET,
            dynamo=False,  # the other exporter takes six times as long, for the same graph
        )
        quantize_dynamic(whole, output / _MODEL, per_channel=True, weight_type=QuantType.QInt8)


class OnnxEncoder:
    """Encodes with the model in a folder, on `threads` threads."""

    def __init__(self, folder: Path, threads: int = 1) -> None:
        options = SessionOptions()
        options.intra_op_num_threads = threads
        self._session = InferenceSession(str(folder / _MODEL), options, providers=["CPUExecutionProvider"])
        self._tokenizer = Tokenizer.from_file(str(folder / _TOKENIZER))

    def vectors(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Encode texts as one batch: (n, H) float32."""
        read = self._tokenizer.encode_batch(list(texts))
        arrays = ([one.ids for one in read], [one.attention_mask for one in read])
        given = {name: np.array(rows, dtype=np.int64) for name, rows in zip(_INPUTS, arrays, strict=True)}
        return np.asarray(self._session.run(None, given)[0], dtype=np.float32)


def onnx_encoder(encoder: OnnxEncoder, bundle: Bundle, base: QueryEncoder) -> Encode:
    """Return the query encoder, with the instruction of the bundle's default task; `base`, the bundle's own, gives the
    sparse query. Raise ModelError for vectors that are shorter than the documents'."""
    instruction = bundle.manifest.tasks[bundle.manifest.default_task].instruction

    def encode(texts: Sequence[str]) -> list[EncodedQuery]:
        return joined(texts, encoder.vectors([instruction + text for text in texts]), bundle, base)

    encode(["search"])  # of other vectors it raises
    return encode


@program(
    *OPTIONS,
    option("--model", Path, "folder of sentence-transformers"),
    option("--work", Path, "folder for the model in int8"),
    option("--build", False, "make it, and end"),
    option("--threads", 1, "threads of one batch"),
)
def main(given: Namespace) -> None:
    """Serve until SIGTERM, or make the model in int8."""
    folder = given.work / "onnx"
    if given.build:
        save_onnx(given.model, folder)
        return
    bundle, encoder = Bundle.open(given.bundle), OnnxEncoder(folder, given.threads)
    serve_model(given, bundle, lambda base: onnx_encoder(encoder, bundle, base))


if __name__ == "__main__":
    sys.exit(main())
