"""Save the static embeddings of wordllama as a folder of sentence-transformers, to be evaluated as any bi-encoder is.

    python -m research.models.static path/to/wordllama runs/wordllama

A text is the mean of its tokens' rows, for queries and documents alike; no model reads either. The folder is the
package `wordllama` (0.4.0, MIT licence) as pip installs it, or its wheel unpacked. Text is lowercased first, as it is
for the systems it is compared with: tokenizers know cases, and some collections write their queries in capitals.
"""

import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer, normalizers

from lightretriever.loadtest.program import option, program

WEIGHTS = "weights/l2_supercat_256.safetensors"
TOKENIZER = "tokenizers/l2_supercat_tokenizer_config.json"


def save_static(package: Path, output: Path) -> None:
    """Write the embeddings in the folder `package` to the folder `output`."""
    (rows,) = load_file(package / WEIGHTS).values()
    tokenizer = Tokenizer.from_str((package / TOKENIZER).read_text(encoding="utf-8"))
    steps = [normalizers.Lowercase(), *([tokenizer.normalizer] if tokenizer.normalizer else [])]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    model = SentenceTransformer(
        modules=[StaticEmbedding(tokenizer, embedding_weights=rows.astype(np.float32))], device="cpu"
    )
    model.save(str(output), create_model_card=False)


@program(option("package", Path, "folder of the package wordllama"), option("output", Path, "folder to write"))
def main(given: Namespace) -> None:
    """Save the model."""
    save_static(given.package, given.output)


if __name__ == "__main__":
    sys.exit(main())
