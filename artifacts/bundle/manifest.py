"""`manifest.json`: what a bundle is, what it is made of, and where its files lie. A bundle may come from a stranger, so
no path may leave it."""

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final, Literal, Self

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from lightretriever.artifacts.documents.bounds import MAX_DIMENSION, MAX_FEEDBACK, MAX_FIELD_CHARS, MAX_FIELDS, MAX_TERM
from lightretriever.artifacts.documents.fields import FieldKind, FieldName
from lightretriever.artifacts.errors import BundleError
from lightretriever.artifacts.files.reading import read_bounded
from lightretriever.artifacts.sparse.vocabulary import Language, VocabularyKind
from lightretriever.artifacts.tokens.table import TableDtype, scale_path

MANIFEST_FILE: Final = "manifest.json"
FEEDBACK: Final = 0.5  # weight of the first document's vector in a fusion (`service.search.fusion`), unless named


def _inside(path: str) -> str:
    """A relative path in POSIX spelling that can't leave the bundle."""
    parts = path.split("/")
    if not path or "\\" in path or "\0" in path or ":" in path or any(part in {"", ".", ".."} for part in parts):
        raise ValueError(f"{path!r} is not a plain relative path inside the bundle")
    if path == MANIFEST_FILE:
        raise ValueError(f"{MANIFEST_FILE} can't be listed in itself")
    return path


MAX_TEXT_CHARS: Final = 10_000  # of a name, an instruction or any other text of a manifest
InsidePath = Annotated[str, AfterValidator(_inside)]
TaskName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
Cosine = Annotated[float, Field(ge=-1.01, le=1.01, allow_inf_nan=False)]


class ManifestPart(BaseModel):
    """Base of a manifest's parts: immutable, no unknown fields, and bounded texts, which a service shows to all."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_max_length=MAX_TEXT_CHARS)


def _left_out_if(default: object, **bounds: Any) -> Any:
    """Declare a field with a default, with which it is left out of `manifest.json`."""
    return Field(default=default, exclude_if=lambda value: value == default, **bounds)


class HeadInfo(ManifestPart):
    """How many head queries a task has, which the whole model read."""

    queries: int = Field(ge=1)


class MatchThresholds(ManifestPart):
    """Dense scores (cosines) from which a document is a `weak` and a `strong` match, and the number of unrelated
    queries whose best scores they were set by (see `artifacts.bundle.writer`)."""

    weak: Cosine
    strong: Cosine
    queries: int = Field(ge=1)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.weak > self.strong:
            raise ValueError(f"the threshold weak is {self.weak}, above strong, {self.strong}")
        return self


class TaskInfo(ManifestPart):
    """One token table (V, D): its file, the instruction its rows were computed behind, and its number type; a bundle
    without a dense leg has neither file nor type. With head queries, the model read them behind the same instruction
    (see `artifacts.tokens.table`). `match` is missing where the vocabulary has too few words to set it by."""

    file: InsidePath | None = _left_out_if(None)
    instruction: str
    dtype: TableDtype | None = _left_out_if(None)
    head: HeadInfo | None = _left_out_if(None)
    match: MatchThresholds | None = _left_out_if(None)


class ExpansionInfo(ManifestPart):
    """By how many `terms` the token table of the default task expands each document in the sparse leg, and the `weight`
    of what it says beside BM25 (see `artifacts.pipeline.impacts`); a recipe's section `expand`, too."""

    terms: int = Field(default=16, ge=1)
    weight: float = Field(default=0.25, gt=0, allow_inf_nan=False)


FORMAT_VERSION: Final = 4
_MAX_BYTES: Final = 64 << 20
_FORMAT: Final = "lightretriever-bundle"
_REBUILD: Final = "Fetch or build the bundle again."
_BUILD_AGAIN: Final = "Build it again: `lightretriever build RECIPE`."
_UPGRADE: Final = "Upgrade lightretriever-search, or fetch a bundle of the older format."
_DIGEST: Final = "manifest_sha256"

LegWeight = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]
FieldNames = Annotated[list[Annotated[str, Field(max_length=MAX_FIELD_CHARS)]], Field(max_length=MAX_FIELDS)]
ImpactKind = Literal["learned", "bm25"]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Xxh3 = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class ModelSource(ManifestPart):
    """A model: its name, the SHA-256 over its weights, adapter and settings, its adapter and its licence."""

    name: str
    sha256: Sha256 | None = None
    adapter: str | None = None
    licence: str | None = None


class ModelInfo(ModelSource):
    """The model that made the dense vectors: hidden size H, and whether it was trained for retrieval."""

    hidden_size: int = Field(ge=1)
    trained: bool


class CorpusInfo(ManifestPart):
    """The corpus: its name, licence and the SHA-256 of its file. `skipped` of its lines were bad and are left out;
    `cut` documents are longer than the model reads, and their vectors stand for the beginning alone."""

    name: str
    licence: str | None = None
    sha256: Sha256 | None = None
    skipped: int = _left_out_if(0, ge=0)
    cut: int = _left_out_if(0, ge=0)


class TokenizerInfo(ManifestPart):
    """A tokenizer's file, whether texts are lowercased before it, and of the sparse leg's own, how many ids it has.
    With `bare`, dense queries don't have a space before their first word, as the official checkpoints were trained."""

    file: InsidePath = "tokenizer.json"
    sha256: Sha256
    lowercase: bool
    bare: bool = _left_out_if(False)
    vocab_size: int | None = _left_out_if(None, ge=1, le=MAX_TERM)


class DenseInfo(ManifestPart):
    """The Faiss index: its file, how it was built, the search parameters set when it is opened, and the share of the
    exact best 100 that they find, as measured when it was built; no such share where the search is exact. `background`
    is the file of vectors that tell how good a score is; bundles of earlier versions have none."""

    file: InsidePath = "dense.faiss"
    factory: str
    parameters: dict[str, float] = Field(default_factory=dict)
    recall: float | None = _left_out_if(None, ge=0, le=1)
    background: InsidePath | None = _left_out_if(None)


class SparseInfo(ManifestPart):
    """The Lucene impact index: impacts are round(quantization * w), the best `top_k` per document (None: all).

    `vocabulary` says what a term is: a word of `language`, or a token. `impacts` says what the w of tokens is: learned
    by the model, or BM25; that of words is BM25, with the parameters `k1` and `b`, and `expansion` says how the token
    table changed it, if it did. `positions`: whether the index has those of the words. A query weighs a term by its
    count; with `query_weights` idf_count, a token by its count times its IDF, in the file `idf`, (V,) float32. `model`
    is what made the impacts of tokens, and `tokenizer` what makes the tokens, where they are others than the dense
    leg's.
    """

    directory: InsidePath = "lucene"
    vocabulary: VocabularyKind
    language: Language | None = _left_out_if(None)
    positions: bool = _left_out_if(False)
    quantization: int = Field(default=100, ge=1)
    top_k: int | None = Field(default=None, ge=1)
    impacts: ImpactKind
    k1: float | None = _left_out_if(None, ge=0, allow_inf_nan=False)
    b: float | None = _left_out_if(None, ge=0, le=1)
    query_weights: Literal["count", "idf_count"] = "count"
    idf: InsidePath | None = _left_out_if(None)
    model: ModelSource | None = _left_out_if(None)
    tokenizer: TokenizerInfo | None = _left_out_if(None)
    expansion: ExpansionInfo | None = _left_out_if(None)

    @model_validator(mode="after")
    def _weights_have_their_file(self) -> Self:
        if (self.idf is not None) != (self.query_weights == "idf_count"):
            raise ValueError(f"query_weights {self.query_weights!r} does not go with the idf file {self.idf!r}")
        if (self.language is None) != (self.vocabulary == "tokens"):
            raise ValueError(f"the vocabulary {self.vocabulary!r} does not go with the language {self.language!r}")
        if self.positions and self.language is None:
            raise ValueError("tokens have no positions")
        return self

    @property
    def phrases(self) -> Language | None:
        """The language of the words whose positions are in the index; None if it has no positions."""
        return self.language if self.positions else None


class LegWeights(ManifestPart):
    """Weights of the dense and the sparse leg in hybrid search; 0 leaves a leg out."""

    dense: LegWeight = 0.0
    sparse: LegWeight = 0.0

    @model_validator(mode="after")
    def _not_all_zero(self) -> Self:
        if not (self.dense or self.sparse):
            raise ValueError("one of the weights must be above 0")
        return self


class FusionInfo(LegWeights):
    """How hybrid search joins the legs: their weights, and the weight of the first document's vector in a feedback."""

    feedback: float = _left_out_if(FEEDBACK, ge=0, le=MAX_FEEDBACK, allow_inf_nan=False)


class LiveInfo(ManifestPart):
    """The journal whose changes, up to the one numbered `position`, are in the bundle."""

    journal: str
    position: int = Field(ge=0)


class FileInfo(ManifestPart):
    """Size in bytes and SHA-256 of a file, and its XXH3 (128 bits)."""

    bytes: int = Field(ge=0)
    sha256: Sha256
    xxh3: Xxh3


ExampleQuery = Annotated[str, Field(max_length=200, pattern=r"\S")]  # a query to try


class Manifest(ManifestPart):
    """All of `manifest.json`. `documents` is N, `vocab_size` V, `dimension` D.

    `fields` are the declared fields, by which a search can be filtered and counted; `field_names` are all that any
    document has, "_id" too, in alphabetical order. `dense` is None in a bundle that searches its sparse leg alone.
    `examples` are queries to try. `live` says which journal the bundle has changes of.
    `ids_sha256` is the SHA-256 of the document ids joined by line breaks in ordinal order. `files` lists everything
    in the bundle but the manifest, by POSIX path. The file also holds `manifest_sha256`, which is `digest`.
    """

    format: Literal["lightretriever-bundle"] = _FORMAT
    format_version: Literal[4] = FORMAT_VERSION
    name: str
    created: str
    generator: str
    model: ModelInfo
    corpus: CorpusInfo
    vocab_size: int = Field(ge=1, le=MAX_TERM)
    dimension: int = Field(ge=1, le=MAX_DIMENSION)
    documents: int = Field(ge=1)
    tokenizer: TokenizerInfo
    default_task: TaskName
    tasks: dict[TaskName, TaskInfo]
    dense: DenseInfo | None
    sparse: SparseInfo
    fusion: FusionInfo | None = _left_out_if(None)
    fields: dict[FieldName, FieldKind] = Field(default_factory=dict, exclude_if=lambda fields: not fields)
    field_names: FieldNames
    examples: list[ExampleQuery] = Field(default_factory=list, max_length=5, exclude_if=lambda examples: not examples)
    live: LiveInfo | None = _left_out_if(None)
    ids_sha256: Sha256
    files: dict[InsidePath, FileInfo]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.default_task not in self.tasks:
            raise ValueError(
                f"default_task {self.default_task!r} is not among the tasks {', '.join(sorted(self.tasks))}"
            )
        tokenizers = [info for info in (self.tokenizer, self.sparse.tokenizer) if info is not None]
        named = [self.sparse.idf, *(info.file for info in tokenizers)]
        named += [] if self.dense is None else [self.dense.file]
        for name, task in self.tasks.items():
            if (task.file is None) != (self.dense is None) or (task.file is None) != (task.dtype is None):
                raise ValueError(f"the task {name!r} has a token table and the bundle no dense leg, or the reverse")
            named += table_files(task)
            named += [] if task.head is None else head_files(name)
        for file in filter(None, named):
            if file not in self.files:
                raise ValueError(f"{file} is used but not listed in files")
        if not any(PurePosixPath(self.sparse.directory) in PurePosixPath(file).parents for file in self.files):
            raise ValueError(f"{self.sparse.directory} is used but no file in it is listed in files")
        for info in tokenizers:
            if (listed := self.files[info.file].sha256) != info.sha256:
                raise ValueError(f"tokenizer.sha256 of {info.file} is {info.sha256}, but files has {listed}")
        return self

    @property
    def sparse_vocab_size(self) -> int:
        """How many terms the sparse leg has: V, or the number of ids of its own tokenizer."""
        tokenizer = self.sparse.tokenizer
        return (tokenizer and tokenizer.vocab_size) or self.vocab_size

    def to_bytes(self) -> bytes:
        """The text of `manifest.json`, UTF-8."""
        record = {**self.model_dump(mode="json"), _DIGEST: self.digest}
        return (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode()

    @property
    def digest(self) -> str:
        """SHA-256 over all fields, hence over every file of the bundle: the identity of this version. The fields are
        hashed as JSON with sorted keys, no white space, and all but ASCII escaped."""
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


def table_file(task: str) -> str:
    """Where the table of a task lies in a bundle."""
    return f"tables/{task}.npy"


def head_files(task: str) -> list[str]:
    """Where the head queries of a task lie in a bundle: texts and vectors."""
    return [f"heads/{task}.json", f"heads/{task}.npy"]


def table_files(task: TaskInfo) -> list[str]:
    """The files of a task's token table, by POSIX path: none without a dense leg, and two where it has row scales."""
    if task.file is None:
        return []
    return [task.file, *([scale_path(PurePosixPath(task.file)).as_posix()] if task.dtype == "int8" else [])]


def check_outside(path: Path) -> None:
    """Raise BundleError for a path inside a bundle, which is refused with anything that its manifest does not list."""
    for folder in Path(os.path.realpath(path)).parents:
        with suppress(BundleError):
            read_manifest(folder)
            break
    else:
        return
    raise BundleError(
        f"{path} is inside the bundle {folder}, which can't be opened with other files in it.",
        remedy="Choose a place outside of it.",
    )


def read_manifest(bundle: Path) -> Manifest:
    """Read and validate BUNDLE/manifest.json. Raises BundleError when it is missing, not a manifest, of another format
    version, inconsistent in itself, or not what `manifest_sha256` was written for."""
    path = Path(bundle) / MANIFEST_FILE
    if not Path(bundle).is_dir():
        raise BundleError(f"{bundle}: there is no such folder.", remedy="Give the folder that holds manifest.json.")
    try:
        content = read_bounded(path, _MAX_BYTES)
    except OSError as error:
        raise BundleError(
            f"{path}: the manifest can't be read: {error.strerror}.", remedy="Give the folder that holds manifest.json."
        ) from error
    return parse_manifest(content, path)


def parse_manifest(content: bytes, path: Path) -> Manifest:
    """Validate the bytes of a manifest; `path` is for the messages. Raises BundleError."""
    try:
        record = orjson.loads(content)  # unlike json it refuses half of a surrogate pair, which is no text
    except orjson.JSONDecodeError as error:
        raise BundleError(f"{path}: not JSON: {error}.", remedy=_REBUILD) from error
    if not isinstance(record, dict) or record.get("format") != _FORMAT:
        value = record.get("format") if isinstance(record, dict) else type(record).__name__
        raise BundleError(f'{path}: "format" must be "{_FORMAT}", found {value!r}.', remedy="This is no bundle.")
    version = record.get("format_version")  # another format may have other fields
    if version != FORMAT_VERSION:
        remedy = _UPGRADE if isinstance(version, int) and version > FORMAT_VERSION else _BUILD_AGAIN
        what = f"{path}: format_version is {version!r}, this software reads {FORMAT_VERSION}."
        raise BundleError(what, remedy=remedy)
    listed = record.pop(_DIGEST, None)
    try:
        manifest = Manifest.model_validate(record)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "manifest"
        raise BundleError(
            f"{path}: {field}: {first['msg']} ({error.error_count()} problem(s) in all).", remedy=_REBUILD
        ) from error
    if listed != manifest.digest:
        raise BundleError(
            f"{path}: the manifest was changed: {_DIGEST} is {listed}, but its other fields have {manifest.digest}.",
            remedy="Restore the bundle from a copy, or build it again.",
        )
    return manifest
