"""Make a bundle of any size that searches like a real one (see `loadtest.synthetic`).

    python -m lightretriever.loadtest.make_corpus RECIPE OUTPUT --documents 1000000

RECIPE is that of a bundle which was built: its encoded documents, in the work directory, are what is fitted. Tokenizer,
token tables and IDF of the new bundle are those of the real one. `--report FILE` writes how well the two agree. A
thousand of `--queries`, from all over, lay out the dense index, as those of a recipe would.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from lightretriever.artifacts.bundle.manifest import CorpusInfo
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.writer import TableInput, write_bundle
from lightretriever.artifacts.corpus.beir import find_file, read_queries
from lightretriever.artifacts.errors import LightRetrieverError
from lightretriever.artifacts.files.shards import ShardStore
from lightretriever.artifacts.pipeline.build import encoded_batches
from lightretriever.artifacts.pipeline.recipe import Recipe, load_recipe
from lightretriever.loadtest.synthetic import Sample, SyntheticCorpus
from lightretriever.loadtest.synthetic_report import compare

__all__ = ["main", "make_bundle", "read_sample"]


def read_sample(recipe: Recipe) -> Sample:
    """The encoded documents of a recipe, cut as its bundle is. Raises ResumeError when they aren't all there."""
    store = ShardStore(recipe.work / "encode")
    manifest = Bundle.open(recipe.output).manifest
    return Sample.of(list(encoded_batches(store, recipe.corpus.open())), manifest.dimension, manifest.sparse.top_k)


def make_bundle(
    source: Bundle,
    corpus: SyntheticCorpus,
    documents: int,
    output: Path,
    factory: str | None,
    queries: Sequence[str] = (),
) -> Bundle:
    """Write `documents` synthetic documents as a bundle, everything else as in `source`. Raises what writing raises."""
    manifest = source.manifest
    ids = np.arange(manifest.vocab_size)
    tables = {task: TableInput(info.instruction, source.table(task).rows(ids)) for task, info in manifest.tasks.items()}
    return write_bundle(
        output,
        name=f"{manifest.name}-{documents}",
        model=manifest.model,
        corpus=CorpusInfo(name=f"{documents:,} synthetic documents after {manifest.corpus.name}"),
        tokenizer_file=source.path / manifest.tokenizer.file,
        lowercase=manifest.tokenizer.lowercase,
        tables=tables,
        default_task=manifest.default_task,
        documents=corpus.draw(documents),
        dimension=manifest.dimension,
        top_k=manifest.sparse.top_k,
        factory=factory,
        quantization=manifest.sparse.quantization,
        impacts=manifest.sparse.impacts,
        idf=source.idf(),
        weights=None if manifest.fusion is None else (manifest.fusion.dense, manifest.fusion.sparse),
        queries=queries,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the bundle; returns the exit status."""
    given = _parser().parse_args(arguments)
    try:
        recipe = load_recipe(given.recipe, {"work": _text(given.work), "output": _text(given.bundle)})
        source, sample = Bundle.open(recipe.output), read_sample(recipe)
        corpus = SyntheticCorpus(sample, seed=given.seed)
        print(f"fitted to {len(sample.documents):,} documents and their neighbourhoods", file=sys.stderr)
        texts = [] if given.queries is None else list(read_queries(find_file(given.queries, "queries")).values())
        if given.report is not None:
            report = compare(sample, corpus, source.tokenizer().encode_batch(texts))
            given.report.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        bundle = make_bundle(source, corpus, given.documents, given.output, given.factory, texts)
    except LightRetrieverError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{bundle.path}: {bundle.manifest.documents:,} documents")
    return 0


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Make a bundle of any size that searches like a real one.")
    parser.add_argument("recipe", type=Path, help="recipe of the real bundle")
    parser.add_argument("output", type=Path, help="the bundle to write")
    parser.add_argument("--documents", type=int, required=True)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--factory", help="Faiss factory string (by size)")
    parser.add_argument("--work", type=Path, help="in place of the recipe's work")
    parser.add_argument("--bundle", type=Path, help="in place of the recipe's output")
    parser.add_argument("--report", type=Path, help="JSON file: how well the synthetic corpus agrees with the real one")
    parser.add_argument("--queries", type=Path, help="folder in BEIR layout: lay out the index; for the report")
    return parser


if __name__ == "__main__":
    sys.exit(main())
