"""Save static embeddings as a folder of sentence-transformers, to be evaluated like any other bi-encoder.

    python -m research.models.static path/to/wordllama runs/wordllama
    python -m research.models.static path/to/bundle runs/light-documents

A text is the mean of its tokens' rows, for queries and documents alike; no model reads either. The first folder is the
package `wordllama` (0.4.0, MIT licence) as pip installs it, or its wheel unpacked; or a bundle, whose token table of
the default task then stands for documents as well (the paper's ablation A1). Text is lowercased first, as it is for the
systems it is compared with: tokenizers know cases, and some collections write their queries in capitals.
"""

import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer, normalizers

from lightretriever.artifacts.bundle.manifest import MANIFEST_FILE
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import ModelError
from lightretriever.loadtest.program import option, program

__all__ = ["main", "save_static"]

WEIGHTS = "weights/l2_supercat_256.safetensors"
TOKENIZER = "tokenizers/l2_supercat_tokenizer_config.json"
CARD = """\
---
library_name: sentence-transformers
license: {licence}
---
Static embeddings of {origin}, in the layout of sentence-transformers' `StaticEmbedding`. The rows are
unchanged; text is lowercased first.
"""


def save_static(source: Path, output: Path) -> None:
    """Write the model of the folder `source` to the folder `output`.

    Raises ModelError when a file is missing, can't be read, or tokenizer and embedding don't fit each other, and
    BundleError for a bundle that can't be opened.
    """
    bundle = (source / MANIFEST_FILE).is_file()
    rows, tokenizer, card = _of_bundle(source) if bundle else _of_wordllama(source)
    steps = [normalizers.Lowercase(), *([tokenizer.normalizer] if tokenizer.normalizer else [])]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    model = SentenceTransformer(
        modules=[StaticEmbedding(tokenizer, embedding_weights=rows.astype(np.float32))], device="cpu"
    )
    model.save(str(output), create_model_card=False)
    (output / "README.md").write_text(card, encoding="utf-8")


def _of_wordllama(package: Path) -> tuple[npt.NDArray[np.floating], Tokenizer, str]:
    try:
        (name, rows), *others = load_file(package / WEIGHTS).items()
        tokenizer = Tokenizer.from_str((package / TOKENIZER).read_text(encoding="utf-8"))
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{package}: neither wordllama 0.4.0 nor a bundle: {error}") from error
    highest = max(tokenizer.get_vocab(with_added_tokens=True).values())
    if others or rows.ndim != 2 or highest >= len(rows):
        raise ModelError(
            f"{package / WEIGHTS}: expected one embedding of more than {highest} rows, found {name} {rows.shape}"
        )
    origin = "wordllama 0.4.0 (`l2_supercat`, 256 dimensions; Lee Miller, MIT licence)"
    return rows, tokenizer, CARD.format(licence="mit", origin=origin)


def _of_bundle(folder: Path) -> tuple[npt.NDArray[np.floating], Tokenizer, str]:
    bundle = Bundle.open(folder)
    if not bundle.manifest.tokenizer.lowercase:
        raise ModelError(f"{folder}: its text is not lowercased, which static embeddings here are")
    table = bundle.table(bundle.manifest.default_task)
    tokenizer = Tokenizer.from_file(str(folder / bundle.manifest.tokenizer.file))
    origin = f"the token table of {bundle.manifest.model.name}"
    card = CARD.format(licence=bundle.manifest.model.licence or "other", origin=origin)
    return table.rows(np.arange(table.shape[0])), tokenizer, card


@program(
    option("source", Path, "folder of the package wordllama, or a bundle"), option("output", Path, "folder to write")
)
def main(given: Namespace) -> None:
    """Save the model."""
    save_static(given.source, given.output)


if __name__ == "__main__":
    sys.exit(main())
