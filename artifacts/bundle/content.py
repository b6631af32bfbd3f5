"""What a bundle is written of."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lightretriever.artifacts.bundle.batches import EncodedBatch
from lightretriever.artifacts.bundle.manifest import CorpusInfo, LegWeights, LiveInfo, ModelInfo, SparseInfo
from lightretriever.artifacts.documents.fields import FieldKind
from lightretriever.artifacts.dtypes import Float32Array, FloatArray
from lightretriever.artifacts.tokens.head_queries import HeadQueries
from lightretriever.artifacts.tokens.table import TableDtype

__all__ = ["BundleContent", "DenseSettings", "TableInput"]


@dataclass(frozen=True)
class TableInput:
    """A token table to be: the task instruction, the rows E[t], shape (V, H), H at least the bundle's D, and the head
    queries that the model read behind the same instruction, if any, with vectors of H values."""

    instruction: str
    rows: FloatArray
    head: HeadQueries | None = None


@dataclass(frozen=True)
class DenseSettings:
    """The dense leg of a bundle to be: the Faiss `factory` string (None: by size), and `queries`, a sample of those
    that will be asked of the default task. A large index is laid out by them, and its search parameters are chosen by
    them, or by some that the documents make where there are none."""

    factory: str | None = None
    queries: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class BundleContent:
    """The content of a bundle to be written.

    `tokenizer_file` makes the tokens of the `tables`, one of each task, whose number type will be `table_dtype`.
    `dimension` is D: table rows and document vectors are cut to their first D values (Matryoshka), and the latter
    normalised again. Without `dense`, the bundle has no vectors and no tables, and searches its sparse leg alone.
    `documents` is consumed once, batch by batch; `sparse` says what their terms and impacts are, and gets its files
    when they are written: with `idf` (V,) a token of a query weighs count times IDF, and `sparse_tokenizer_file` makes
    the tokens where another model made the impacts than the vectors. `weights` of dense and sparse are for requests
    that name none (None: the service's). `fields` are those to filter and count by. `examples` are queries to try,
    which the search page offers. `bare` is that of `TokenizerInfo`. `live` says which changes of a journal
    are among the documents.
    """

    name: str
    model: ModelInfo
    corpus: CorpusInfo
    tokenizer_file: Path
    lowercase: bool
    tables: Mapping[str, TableInput]
    default_task: str
    documents: Iterable[EncodedBatch]
    dimension: int
    sparse: SparseInfo
    bare: bool = False
    idf: Float32Array | None = None
    sparse_tokenizer_file: Path | None = None
    dense: DenseSettings | None = field(default_factory=DenseSettings)
    table_dtype: TableDtype = "float16"
    weights: LegWeights | None = None
    fields: Mapping[str, FieldKind] = field(default_factory=dict)
    examples: Sequence[str] = ()
    live: LiveInfo | None = None
