"""Hard negatives: what BM25 or a model puts high for the queries of the training pairs, of the set's own documents."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from lightretriever.artifacts.evaluation.bm25 import word_index
from lightretriever.artifacts.progress import tracked
from lightretriever.artifacts.training.recipe import NegativesRecipe
from lightretriever.artifacts.training.types import Example, same_text

Hits = list[tuple[str, float]]


def mine(
    examples: Sequence[Example],
    documents: Mapping[str, str],
    relevant: Mapping[str, set[str]],
    settings: NegativesRecipe,
    work: Path,
) -> list[Example]:
    """The examples with their hard negatives by BM25, which indexes the documents in a folder below `work` that is
    removed again. `relevant` has all relevant documents of a query (as `same_text` spells it)."""
    title, queries = f"{work.name}: BM25", list(dict.fromkeys(example.query for example in examples))
    with (
        word_index(work, documents, documents.values(), title) as words,
        ThreadPoolExecutor() as pool,  # Java releases the GIL
    ):
        hits = pool.map(lambda query: words.ranked(query, settings.depth), queries)
        read = tracked(hits, title, total=len(queries), unit="queries")
        ranked = dict(zip(queries, read, strict=True))
    return chosen(examples, ranked, documents, relevant, settings)


def chosen(
    examples: Sequence[Example],
    ranked: Mapping[str, Hits],
    documents: Mapping[str, str],
    relevant: Mapping[str, set[str]],
    settings: NegativesRecipe,
) -> list[Example]:
    """The examples with hard negatives of the hits that a model `ranked` for their queries: none that scores above
    `margin` times the positive's score, and none at all where the positive, and so its score, is not among the hits.
    With `settings.top`, examples whose positive is not among so many first hits are left out."""
    kept = []
    for example in examples:
        hits = ranked[example.query]
        score = dict(hits).get(example.positive)
        if settings.top is None or example.positive in dict(hits[: settings.top]):
            names = [] if score is None else [name for name, other in hits if other <= settings.margin * score]
            usable = usable_negatives(names, documents, relevant[same_text(example.query)])
            kept.append(replace(example, negatives=usable[: settings.count]))
    return kept


def usable_negatives(names: Iterable[str], documents: Mapping[str, str], relevant: set[str]) -> tuple[str, ...]:
    """Those of the `names` that are documents, and don't have the text of a relevant one; each text once."""
    texts = {same_text(documents[name]) for name in relevant}
    usable = []
    for name in names:
        if name in documents and (text := same_text(documents[name])) not in texts:
            texts.add(text)
            usable.append(name)
    return tuple(usable)
