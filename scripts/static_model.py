"""Save wordllama's static embeddings as a folder of sentence-transformers, to be evaluated like any other bi-encoder.

    python scripts/static_model.py path/to/wordllama runs/wordllama

The first folder is the package `wordllama` (0.4.0, MIT licence) as pip installs it, or its wheel unpacked. A text is
the mean of its tokens' rows, for queries and documents alike; no model reads either. Text is lowercased first, as it is
for the systems it is compared with: the tokenizer knows cases, and some collections write their queries in capitals.
"""

import argparse
import sys
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer, normalizers

__all__ = ["main", "save_static"]

WEIGHTS = "weights/l2_supercat_256.safetensors"
TOKENIZER = "tokenizers/l2_supercat_tokenizer_config.json"
CARD = """\
---
library_name: sentence-transformers
license: mit
---
Static embeddings of wordllama 0.4.0 (`l2_supercat`, 256 dimensions; Lee Miller, MIT licence), in the layout of
sentence-transformers' `StaticEmbedding`. The rows are unchanged; text is lowercased first.
"""


def save_static(package: Path, output: Path) -> None:
    """Write the model of the folder `package` to the folder `output`.

    Raises ValueError when a file is missing, can't be read, or tokenizer and embedding don't fit each other.
    """
    try:
        (name, rows), *others = load_file(package / WEIGHTS).items()
        tokenizer = Tokenizer.from_str((package / TOKENIZER).read_text(encoding="utf-8"))
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{package}: not wordllama 0.4.0: {error}") from error
    highest = max(tokenizer.get_vocab(with_added_tokens=True).values())
    if others or rows.ndim != 2 or highest >= len(rows):
        raise ValueError(
            f"{package / WEIGHTS}: expected one embedding of more than {highest} rows, found {name} {tuple(rows.shape)}"
        )
    steps = [normalizers.Lowercase(), *([tokenizer.normalizer] if tokenizer.normalizer else [])]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_weights=rows.float())], device="cpu")
    model.save(str(output), create_model_card=False)
    (output / "README.md").write_text(CARD, encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Save the model; returns the exit status."""
    parser = argparse.ArgumentParser(description="Save wordllama's embeddings as a sentence-transformers folder.")
    parser.add_argument("package", type=Path, help="folder of the package wordllama")
    parser.add_argument("output", type=Path, help="folder to write")
    given = parser.parse_args(arguments)
    try:
        save_static(given.package, given.output)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
