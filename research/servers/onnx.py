"""The service with a bi-encoder in its query path, by ONNX Runtime: int8 weights, one thread, waiting queries batched.

    python -m research.servers.onnx BUNDLE --model FOLDER [--batch 16] --port 0

FOLDER is one of `research.models.onnx`. Indexes, fusion and HTTP are those of `lightretriever.loadtest.model_server`.
"""

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from onnxruntime import InferenceSession, SessionOptions
from tokenizers import Tokenizer

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.evaluation.full import cut_vectors
from lightretriever.loadtest.model_server import OPTIONS, Encode, joined, serve_model
from lightretriever.loadtest.program import option, program
from lightretriever.service.backends.base import EncodedQuery
from lightretriever.service.search.encoder import QueryEncoder

MODEL: Final = "model.onnx"
TOKENIZER: Final = "tokenizer.json"
INPUTS: Final = ("input_ids", "attention_mask")
"""Of the model: token ids, and 1 for those of the text, 0 for padding; (n, T) int64 each."""


class OnnxEncoder:
    """Encodes with the model in a folder, on one thread."""

    def __init__(self, folder: Path) -> None:
        options = SessionOptions()
        options.intra_op_num_threads = 1
        self._session = InferenceSession(str(folder / MODEL), options, providers=["CPUExecutionProvider"])
        self._tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))

    def vectors(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Encode texts as one batch: (n, H) float32."""
        read = self._tokenizer.encode_batch(list(texts))
        arrays = ([one.ids for one in read], [one.attention_mask for one in read])
        given = {name: np.array(rows, dtype=np.int64) for name, rows in zip(INPUTS, arrays, strict=True)}
        return np.asarray(self._session.run(None, given)[0], dtype=np.float32)


def onnx_encoder(encoder: OnnxEncoder, bundle: Bundle, base: QueryEncoder) -> Encode:
    """Return the query encoder, with the instruction of the bundle's default task; `base`, the bundle's own, gives the
    sparse query. Raises ModelError for vectors that are shorter than the documents'."""
    instruction = bundle.manifest.tasks[bundle.manifest.default_task].instruction

    def encode(texts: Sequence[str]) -> list[EncodedQuery]:
        vectors = encoder.vectors([instruction + text for text in texts])
        return joined(texts, cut_vectors(vectors, bundle), bundle, base)

    encode(["search"])  # of other vectors it raises
    return encode


@program(*OPTIONS, option("--model", Path, "folder of research.models.onnx"))
def main(given: Namespace) -> None:
    """Serve until SIGTERM."""
    bundle, encoder = Bundle.open(given.bundle), OnnxEncoder(given.model)
    serve_model(given, bundle, lambda base: onnx_encoder(encoder, bundle, base))


if __name__ == "__main__":
    sys.exit(main())
