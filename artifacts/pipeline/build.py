"""The last stage: token tables and the encoded corpus become one bundle. Needs no torch."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from lightretriever.artifacts.bundle.manifest import (
    MANIFEST_FILE,
    CorpusInfo,
    LegWeights,
    ModelInfo,
    ModelSource,
    SparseInfo,
    check_outside,
)
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.writer import BundleContent, TableInput, write_bundle
from lightretriever.artifacts.corpus.beir import find_file, read_queries
from lightretriever.artifacts.corpus.lines import read_lines
from lightretriever.artifacts.documents.document import read_text
from lightretriever.artifacts.dtypes import Float32Array
from lightretriever.artifacts.errors import CorpusError, ResumeError
from lightretriever.artifacts.files.atomic import check_target
from lightretriever.artifacts.files.reading import file_sha256
from lightretriever.artifacts.files.workdir import check_made, check_same, read_json
from lightretriever.artifacts.pipeline.encoded import EncodedCorpus, encoded_corpus
from lightretriever.artifacts.pipeline.recipe import DistilTableRecipe, Recipe
from lightretriever.artifacts.pipeline.store import TextStore, text_digests
from lightretriever.artifacts.pipeline.terms import SPARSE_TOKENIZER, SparseLeg, encoded_batches, terms_tokenizer
from lightretriever.artifacts.reports import Summary, encoded_line, left_out, megabytes
from lightretriever.artifacts.sparse.vocabulary import Vocabulary
from lightretriever.artifacts.tokens.idf import IDF_FILE, count_tokens, load_idf
from lightretriever.artifacts.tokens.table import HeadQueries, normalised
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer

_COUNTS: Final = ("reused", "encoded", "removed")  # of the stage `encode`

_WEIGHTS: Final = LegWeights(dense=0.5, sparse=0.5)
"""Of the legs, beside a sparse leg of words."""

_QUANTIZATION: Final = {False: 4000, True: 40}
"""Impacts per unit of BM25, by whether documents are expanded. The finer one keeps the order of Lucene's own BM25."""


def check_before_build(recipe: Recipe, *, overwrite: bool = False) -> None:
    """Raise now what would else be raised after hours of encoding: output in the way, bad queries."""
    check_outside(recipe.output)
    check_target(recipe.output, overwrite=overwrite, marker=MANIFEST_FILE)
    _queries(recipe)
    head_texts(recipe)


def build_bundle(recipe: Recipe, *, overwrite: bool = False, encoded: Summary | None = None) -> Summary:
    """Write the recipe's bundle from its work directory. `encoded` is the summary of the stage `encode`, if it ran.

    Raises ResumeError when a stage before this one is missing, unfinished, or was run with another model, instruction,
    setting or corpus than the recipe has now.
    """
    facts = read_json(recipe.work / "backbone.json", stage="table")
    _check_settings(recipe, facts)
    store, corpus = TextStore(recipe.work / "encode"), encoded_corpus(recipe)
    store.check(corpus.digests)
    heads = read_heads(recipe, facts)
    tables = {task: _table(recipe, task, corpus)._replace(head=heads.get(task)) for task in recipe.tasks}
    leg, terms, model = sparse_leg(recipe, corpus), terms_tokenizer(recipe.work), facts.get("dense", facts)
    weights = recipe.index.weights or (_WEIGHTS if leg.info.vocabulary == "words" else None)
    content = BundleContent(
        name=recipe.name,
        model=ModelInfo(
            name=recipe.model.name or model["name"],
            sha256=model["fingerprint"],
            adapter=facts["adapter"],
            hidden_size=facts["hidden_size"],
            trained=recipe.model.trained,
            licence=recipe.model.licence,
        ),
        corpus=CorpusInfo(
            name=recipe.corpus.name,
            licence=recipe.corpus.licence,
            sha256=corpus.corpus_sha256,
            skipped=corpus.skipped.count,
            cut=store.counts(corpus.digests)[1],
        ),
        tokenizer_file=recipe.work / "tokenizer.json",
        lowercase=facts["lowercase"],
        bare=facts.get("bare", False),
        tables=tables,
        default_task=recipe.default_task,
        documents=encoded_batches(recipe.work, corpus, leg),
        dimension=recipe.index.dimension or int(facts["hidden_size"]),
        sparse=leg.info,
        idf=_idf(recipe, facts, leg.vocabulary.tokenizer, corpus),
        sparse_tokenizer_file=terms if terms.name == SPARSE_TOKENIZER else None,
        table_dtype=recipe.index.table_dtype,
        dense=recipe.index.dense,
        queries=_queries(recipe),
        weights=weights if recipe.index.dense else LegWeights(sparse=1.0),
        fields=recipe.corpus.fields,
        examples=recipe.examples,
    )
    return _summary(write_bundle(recipe.output, content, overwrite=overwrite), corpus.skipped.count, encoded)


def _summary(bundle: Bundle, skipped: int, encoded: Summary | None) -> Summary:
    """The summary of a bundle that was written from a corpus, of which so many lines were skipped."""
    manifest, files = bundle.manifest, bundle.manifest.files.values()
    counts = [None if encoded is None else encoded.facts[name] for name in _COUNTS]
    facts: dict[str, Any] = {"stage": "index", "name": manifest.name, "version": manifest.digest}
    facts |= {**dict(zip(_COUNTS, counts, strict=True)), "documents": manifest.documents}
    facts |= {"skipped": skipped, "cut": manifest.corpus.cut}
    facts |= {"dimension": None if manifest.dense is None else manifest.dimension}
    facts |= {"vocabulary": manifest.sparse.vocabulary, "language": manifest.sparse.language}
    facts |= {"tokens": manifest.vocab_size, "tasks": list(manifest.tasks)}
    facts |= {"files": len(files), "bytes": sum(file.bytes for file in files)}
    size = f" × {manifest.dimension}, {manifest.vocab_size:,} tokens" if manifest.dense else ", no dense leg"
    lines = [
        f"{bundle.path}: {manifest.documents:,} documents{size}, tasks {', '.join(manifest.tasks)}; "
        f"{len(files)} files, {megabytes(facts['bytes'])}",
        f"sparse leg: {f'{manifest.sparse.language} words' if manifest.sparse.language else 'tokens'}",
    ]
    lines += [] if encoded is None else [encoded_line(*(encoded.facts[name] for name in _COUNTS))]
    return Summary(str(bundle.path), [*lines, *left_out(skipped, manifest.corpus.cut)], facts)


def fit_inputs(distil: DistilTableRecipe) -> dict[str, Any]:
    """How a table is fitted, as its plan has it: settings, and the SHA-256 of the files of queries. Raises CorpusError
    where one is missing."""
    queries = [file_sha256(find_file(path, "queries")) for path in distil.queries]
    return {"queries": queries, "settings": distil.model_dump(mode="json", exclude={"vectors", "queries"})}


def sparse_leg(recipe: Recipe, corpus: EncodedCorpus | None) -> SparseLeg:
    """What the terms and impacts of the recipe's documents are, described for a manifest without files. Raises
    ResumeError where the table that expands them is missing, or was fitted to another corpus than this."""
    plan, index, table = TextStore(recipe.work / "encode").plan, recipe.index, None
    words = (index.vocabulary or ("tokens" if plan["impacts"] == "learned" else "words")) == "words"
    facts = read_json(recipe.work / "backbone.json", stage="table")
    lowercase, source, made_by = facts["lowercase"], None, recipe.sparse
    if not words and made_by is not None and "sparse" in facts:
        adapter, name = made_by.adapter and Path(made_by.adapter).name, made_by.name or facts["sparse"]["name"]
        sha256 = facts["sparse"]["fingerprint"]
        source = ModelSource(name=name, sha256=sha256, adapter=adapter, licence=made_by.licence)
    tokenizer = TextTokenizer.from_file(recipe.work / "tokenizer.json", lowercase=lowercase)
    file = terms_tokenizer(recipe.work)
    tokens = tokenizer if file.name != SPARSE_TOKENIZER else TextTokenizer.from_file(file, lowercase=lowercase)
    if recipe.expand and words:
        rows = _table(recipe, recipe.default_task, corpus).rows
        table = np.asarray(rows[:, : index.dimension or rows.shape[1]], np.float32)
    bm25 = words or plan["impacts"] == "bm25"
    info = SparseInfo(
        vocabulary="words" if words else "tokens",
        language=index.language if words else None,
        positions=index.positions,
        impacts="bm25" if bm25 else "learned",
        quantization=_QUANTIZATION[table is not None] if words else plan["quantization"],
        top_k=index.top_k or (None if words else plan["top_k"]),
        k1=index.k1 if bm25 else None,
        b=index.b if bm25 else None,
        expansion=(recipe.expand or None) if words else None,
        model=source,
    )
    vocabulary = Vocabulary(None, index.language) if words else Vocabulary(tokens, None)
    return SparseLeg(info, vocabulary, tokenizer, table)


def _queries(recipe: Recipe) -> list[str]:
    return [] if recipe.index.queries is None else list(read_queries(recipe.index.queries).values())


def _check_settings(recipe: Recipe, facts: dict[str, Any]) -> None:
    """Raise ResumeError unless the stage `encode` was run with the models and settings that the recipe has now."""
    plan = read_json(recipe.work / "encode" / "plan.json", stage="encode")
    # All terms of BM25 are kept by default.
    cut = plan["impacts"] == "learned" or "top_k" in recipe.encode.model_fields_set
    names = ("max_length", "top_k") if cut else ("max_length",)
    before = {"model": plan["model"], "sparse": "sparse" in facts, "encode.lowercase": facts["lowercase"]}
    now = {"model": facts["fingerprint"], "sparse": recipe.sparse is not None}
    now |= {f"encode.{name}": getattr(recipe.encode, name) for name in (*names, "lowercase")}
    check_same(recipe.work, before | {f"encode.{name}": plan[name] for name in names}, now, "encode")


def _idf(
    recipe: Recipe, facts: dict[str, Any], tokenizer: TextTokenizer | None, corpus: EncodedCorpus
) -> Float32Array | None:
    """The IDF weights of the `tokenizer` that makes the terms, None for words: those that the work directory was begun
    with, unless the recipe wants the corpus' own, or none."""
    wanted, begun = (recipe.sparse or recipe.model).idf, facts.get("idf")
    if tokenizer is None or wanted is None or (wanted == "auto" and begun is None):
        return None
    if wanted == "corpus":
        return count_tokens(tokenizer.as_queries(corpus.texts()), tokenizer.vocab_size).idf()
    return load_idf(recipe.work / IDF_FILE, tokenizer.vocab_size)


def _table(recipe: Recipe, task: str, corpus: EncodedCorpus | None) -> TableInput:
    facts, folder = read_json(recipe.work / "backbone.json", stage="table"), recipe.table(task)
    now: dict[str, Any] = {"model": facts["fingerprint"], "instruction": recipe.tasks[task]}
    before = check_made(folder / "plan.json", now, "table")
    if recipe.distil is not None:
        now |= fit_inputs(recipe.distil)
    elif not recipe.encoder:
        now["settings"] = None  # fitted to nothing
    if task in recipe.tables and not recipe.encoder:
        now["file"] = file_sha256(recipe.tables[task])
    if corpus is not None and "documents" in before:
        now["documents"] = corpus.identity
    check_same(folder, before, now, "table")
    if not (file := folder / "table.npy").is_file():
        raise ResumeError(f"{file}: not there.", remedy="Run `lightretriever build --from table` with this recipe.")
    return TableInput(recipe.tasks[task], np.load(file, mmap_mode="r"))


def head_texts(recipe: Recipe) -> list[str]:
    """The recipe's head queries, none without a section `head`: the most frequent ones of a log with a query a line, as
    `normalised` writes them, of equally frequent ones the earlier first.

    Raises CorpusError for a file that can't be read, a line that is no text or a JSON object, and a log without
    queries.
    """
    if recipe.head is None:
        return []
    log = recipe.head.queries
    if not log.is_file():
        raise CorpusError(f"head.queries is {log}: there is no such file.", remedy="Give a file with a query a line.")
    counts: Counter[str] = Counter()
    for number, line in read_lines(log):
        if line.lstrip().startswith(b'{"'):
            raise CorpusError(
                f"{log}, line {number}: a JSON object, where the text of a query is expected.",
                remedy="Write the texts alone, as by `jq -r .text`.",
            )
        try:
            counts[normalised(read_text(line), lowercase=recipe.encode.lowercase)] += 1
        except ValueError as error:
            raise CorpusError(f"{log}, line {number}: {error}.", remedy="Mend the line, or take it out.") from error
    counts.pop("", None)  # white space that only Unicode knows
    if not counts:
        raise CorpusError(f"head.queries is {log}: it has no query.", remedy="Give a file with a query a line.")
    return [text for text, _ in counts.most_common(recipe.head.top)]


def read_heads(recipe: Recipe, facts: Mapping[str, Any]) -> dict[str, HeadQueries]:
    """The head queries of every task, as the model of these `facts` (`backbone.json`) reads them. Raises ResumeError
    for other ones than the recipe's."""
    texts, heads = head_texts(recipe), dict[str, HeadQueries]()
    for task, instruction in recipe.tasks.items() if texts else ():
        folder = recipe.table(task) / "head"
        now = {"model": facts.get("dense", facts)["fingerprint"], "instruction": instruction}
        check_made(folder / "plan.json", now, "table")
        store, digests = TextStore(folder), text_digests(texts)
        if not store.has(digests).all():
            raise ResumeError(
                f"{folder}: was made of other queries than those of {recipe.head and recipe.head.queries}.",
                remedy="Run `lightretriever build --from table` with this recipe.",
            )
        heads[task] = HeadQueries(texts, store.rows(digests).dense, lowercase=facts["lowercase"])
    return heads
