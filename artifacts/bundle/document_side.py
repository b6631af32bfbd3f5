"""Writing what is searched: the documents with their impacts in Lucene, and their vectors in Faiss."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import orjson

from lightretriever.artifacts.bundle.batches import check_batch, dense_prefix, keep_top_terms
from lightretriever.artifacts.bundle.content import BundleContent, DenseSettings
from lightretriever.artifacts.bundle.hashes import IdsHash
from lightretriever.artifacts.bundle.manifest import DenseInfo
from lightretriever.artifacts.bundle.query_sample import QuerySample, query_vectors
from lightretriever.artifacts.dense.background import BACKGROUND_FILE, background_ordinals, save_background
from lightretriever.artifacts.dense.build import build_dense_index, factory_for, write_dense_index
from lightretriever.artifacts.dense.tuning import choose_parameters
from lightretriever.artifacts.errors import CorpusError
from lightretriever.artifacts.files.atomic_file import writing
from lightretriever.artifacts.sparse.vocabulary import Vocabulary
from lightretriever.artifacts.sparse.writer import ImpactIndexWriter
from lightretriever.artifacts.tokens.table import TokenTable
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer

__all__ = ["Documents", "write_dense", "write_documents"]

_DENSE_FILE: Final = "dense.faiss"
_VECTORS_FILE: Final = "vectors.partial"
_MAX_QUERIES: Final = 1024


@dataclass(frozen=True)
class Documents:
    """The written documents: their ids, the names of all `fields` in alphabetical order, and the sample."""

    ids: IdsHash
    fields: list[str]
    sample: QuerySample


def write_documents(folder: Path, content: BundleContent, vocabulary: Vocabulary) -> Documents:
    """Write the Lucene index, and the raw vectors for `write_dense`."""
    tokens = 0 if vocabulary.tokenizer is None else vocabulary.tokenizer.vocab_size
    dimension = 0 if content.dense is None else content.dimension
    ids, names, sample = IdsHash(), set[str](), QuerySample()
    file = folder / _VECTORS_FILE
    spellings = vocabulary.language is not None
    with ImpactIndexWriter(folder / content.sparse.directory, content.fields, spellings=spellings) as index:
        for batch in content.documents:
            check_batch(batch, vocab_size=tokens, dimension=dimension, first=ids.count)
            if dimension:
                prefix = dense_prefix(batch, dimension, first=ids.count)
                with writing(file), file.open("ab") as vectors:
                    vectors.write(prefix.tobytes())
            records = [orjson.loads(raw) for raw in batch.documents]
            names.update(*records)
            ids.add(batch.ids)
            kept = keep_top_terms(batch, content.sparse.top_k)
            sample.add(kept)
            index.add(kept.ids, kept.documents, kept.indptr, kept.terms, kept.impacts, kept.names, records)
        if not ids.count:
            raise CorpusError("There are no documents to write.", remedy="Give a corpus with at least one document.")
        try:
            index.close()
        except ValueError as error:
            raise CorpusError(f"{error}.", remedy="Give every document its own id.") from error
    return Documents(ids, sorted(names), sample)


def write_dense(
    folder: Path,
    content: BundleContent,
    settings: DenseSettings,
    documents: Documents,
    table: TokenTable,
    tokenizer: TextTokenizer,
    vocabulary: Vocabulary,
) -> DenseInfo:
    """Every other query lays out the index, the others choose its parameters. Queries made of documents choose them
    where fewer than two are given."""
    queries = settings.queries[:: max(1, -(-len(settings.queries) // _MAX_QUERIES))]  # from all over
    given = query_vectors(table, tokenizer.as_queries(queries))
    made = documents.sample.queries(table, tokenizer, vocabulary.spelt)
    raw = folder / _VECTORS_FILE
    vectors = np.memmap(raw, dtype=np.float32, mode="r", shape=(documents.ids.count, content.dimension))
    factory = settings.factory or factory_for(vectors, given[::2])
    index = build_dense_index(vectors, factory, given[::2])
    write_dense_index(index, folder / _DENSE_FILE)
    parameters, recall = choose_parameters(index, vectors, given[1::2] if len(given) > 1 else made)
    save_background(folder / BACKGROUND_FILE, np.array(vectors[background_ordinals(len(vectors))]))
    raw.unlink()
    return DenseInfo(
        file=_DENSE_FILE, factory=factory, parameters=parameters, recall=recall, background=BACKGROUND_FILE
    )
