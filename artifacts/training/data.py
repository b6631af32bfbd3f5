"""Training data: BEIR sets read, cleaned and given hard negatives, once; a second call takes what the first one kept.

    work/data/NAME/plan.json        what went in: files by SHA-256, and every setting that counts
    work/data/NAME/examples.json    the examples, in the order of the qrels
    work/data/NAME/report.json      how many pairs each step left out; written last
    work/data/NAME/texts.sqlite     the texts, whose pages all processes share

A set in BEIR layout has folders; one as the papers' authors publish it is a file of JSON lines, each of a query, its
relevant passages and hard negatives. A passage without an id is named by its text. The same id means the same passage
in every line.

    {"query_id": "7", "query": "…", "positive_passages": [{"docid": "3", "title": "…", "text": "…"}],
     "negative_passages": [{"docid": "12", "title": "…", "text": "…"}]}

The steps, in this order: read the pairs, leave out those without a text, keep the first few documents of a query,
decontaminate, draw the limit, take the set's own hard negatives or mine.
"""

import json
import re
import shutil
import sqlite3
import unicodedata
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from lightretriever.artifacts.corpus.beir import Corpus, find_file, read_qrels, read_queries
from lightretriever.artifacts.corpus.lines import read_lines
from lightretriever.artifacts.documents.document import read_text
from lightretriever.artifacts.errors import CorpusError, RecipeError, ResumeError
from lightretriever.artifacts.evaluation.bm25 import SCRATCH, word_index
from lightretriever.artifacts.evaluation.runs import qrels_file
from lightretriever.artifacts.files.atomic import new_file
from lightretriever.artifacts.files.reading import file_sha256
from lightretriever.artifacts.files.workdir import check_plan, read_json, write_atomically
from lightretriever.artifacts.reports import ProgressBar, aligned, tracked
from lightretriever.artifacts.tokens.tokenizer import document_text
from lightretriever.artifacts.training.mixture import Example, TrainingSet, same_text
from lightretriever.artifacts.training.recipe import NegativesRecipe, SetRecipe, TrainRecipe

MOST_POSITIVES: Final = 4
"""Relevant documents of one query that become examples, so that a few queries don't fill the batches: those of the
highest grade, then the first in the qrels."""

Hits = list[tuple[str, float]]

_FILE: Final = TypeAdapter(list[Example])
_FORMAT: Final = 3  # to be raised when the same inputs give other examples
_PLAN, _EXAMPLES, _REPORT, _TEXTS = "plan.json", "examples.json", "report.json", "texts.sqlite"
_OF_TEXTS: Final = {"corpus", "drop_title"}
"""The keys of a plan that decide the texts."""

_MAPPED: Final = 2**31 - 2**16  # bytes: the most that SQLite maps into memory; it reads what is beyond

_ENGLISH: Final = (
    "a an and are as at be by can could did do does for from had has have he her his how i in is it its of on or s "
    "shall should t that the their there these they this to was we were what when where which who whom whose why "
    "will with would you"
)
_FUNCTION_WORDS: Final = frozenset(_ENGLISH.split())


class MappedTexts(Mapping[str, str]):
    """Texts by id, in the order of writing, as `write_texts` wrote them to a file."""

    def __init__(self, file: Path) -> None:
        self._database = sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        self._database.execute(f"PRAGMA mmap_size = {_MAPPED}")
        (self._count,) = self._database.execute("SELECT count(*) FROM texts").fetchone()

    def __len__(self) -> int:
        return int(self._count)

    def __iter__(self) -> Iterator[str]:
        return (name for (name,) in self._database.execute("SELECT id FROM texts ORDER BY number"))

    def __getitem__(self, name: str) -> str:
        """The text of a document. Raises KeyError."""
        row = self._database.execute("SELECT text FROM texts WHERE id = ?", [name]).fetchone()
        if row is None:
            raise KeyError(name)
        return str(row[0])


def write_texts(file: Path, documents: Iterable[tuple[str, str]]) -> MappedTexts:
    """Write ids and texts, once: where the file is there already, it is taken as it is. Raises DiskError."""
    if not file.is_file():
        with new_file(file) as opened, closing(sqlite3.connect(opened.name)) as database:
            try:
                database.execute("PRAGMA journal_mode = off")
                database.execute("CREATE TABLE texts (number INTEGER PRIMARY KEY, id TEXT UNIQUE, text TEXT)")
                rows = ((number, *document) for number, document in enumerate(documents))
                database.executemany("INSERT INTO texts VALUES (?, ?, ?)", rows)
                database.commit()
            except sqlite3.OperationalError as error:
                raise OSError(0, str(error)) from error
    return MappedTexts(file)


def prepare(recipe: TrainRecipe) -> list[TrainingSet]:
    """The sets of a recipe, ready for training, made once. Of several processes one goes first.

    Raises CorpusError for a set that can't be read, RecipeError for one of which nothing is left, and ResumeError,
    naming the differences, where the work directory has the same set made from other files or settings.
    """
    for dataset in recipe.data.sets:
        folder, plan = _folder(recipe, dataset), _plan(recipe, dataset)
        # Pairs that were not finished can't be mixed up with others.
        renewed = () if (folder / _REPORT).is_file() else plan.keys() - _OF_TEXTS
        check_plan(folder / _PLAN, plan, renewed=renewed)
    return [_prepared(recipe, dataset) for dataset in recipe.data.sets]


def data_report(recipe: TrainRecipe) -> list[dict[str, Any]]:
    """Read how many pairs each step left out, by set. Raises ResumeError where a set isn't prepared.

    pairs = without_text + beyond_positives + near_duplicates + not_drawn + inconsistent + kept
    """
    return [read_json(_folder(recipe, dataset) / _REPORT) for dataset in recipe.data.sets]


def data_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The counts of `data_report` as a table: what became of the pairs."""
    names = [name for name, value in rows[0].items() if isinstance(value, int)]
    heads = ["training pairs", *(name.replace("_", " ") for name in names)]
    return aligned([heads, *([row["set"], *(f"{row[name]:,}" for name in names)] for row in rows)])


def _folder(recipe: TrainRecipe, dataset: SetRecipe) -> Path:
    return recipe.work / "data" / dataset.name


def _prepared(recipe: TrainRecipe, dataset: SetRecipe) -> TrainingSet:
    folder = _folder(recipe, dataset)
    documents = write_texts(folder / _TEXTS, _documents(dataset))
    if not documents:
        raise RecipeError(
            f"data.sets: no document of the set {dataset.name} has a text.",
            remedy="Leave it out, or give texts: those of JSON lines are in positive_passages and negative_passages.",
        )
    if not (folder / _REPORT).is_file():
        _make(recipe, dataset, documents, folder)
    examples = read_examples(folder / _EXAMPLES)
    weight = dataset.weight or float(len(examples))
    return TrainingSet(dataset.name, dataset.instructions, weight, examples, documents)


def _make(recipe: TrainRecipe, dataset: SetRecipe, documents: MappedTexts, folder: Path) -> None:
    for left in folder.glob(f"{SCRATCH}*"):  # by a run that was killed
        shutil.rmtree(left, ignore_errors=True)
    examples, relevant, counts = read_pairs(dataset, documents)
    clean, rule = examples, recipe.data.decontaminate
    if rule is not None:
        dirty = set(map(content, _references(rule.against, dataset)))
        clean = [example for example in examples if content(example.query) not in dirty]
    kept = drawn = _drawn(clean, dataset, recipe.seed)
    has_own, mined = dataset.is_lines or dataset.negatives is not None, recipe.data.negatives
    if mined is not None and (mined.top is not None or not has_own):
        kept = mine(kept, documents, relevant, mined, folder)
    if has_own:
        file = dataset.negatives or dataset.path
        own = _read_negatives(file)
        usable = (
            usable_negatives(own.get(example.query_id, ()), documents, relevant[same_text(example.query)])
            for example in kept
        )
        kept = [replace(example, negatives=names) for example, names in zip(kept, usable, strict=True)]
        if recipe.wanted_negatives and not any(example.negatives for example in kept):
            raise CorpusError(
                f"{file}: no pair of the set {dataset.name} has a hard negative by it, and a stage wants "
                f"{recipe.wanted_negatives}.",
                remedy="Give ids of the set's own queries and documents, or set stages[].negatives to 0.",
            )
    report: dict[str, Any] = {"set": dataset.name} | counts
    report |= {
        "near_duplicates": len(examples) - len(clean),
        "not_drawn": len(clean) - len(drawn),
        "inconsistent": len(drawn) - len(kept),
        "kept": len(kept),
        "without_negatives": sum(not example.negatives for example in kept),
    }
    if not kept:
        counted = ", ".join(f"{name}: {count}" for name, count in report.items() if count or name == "pairs")
        raise RecipeError(f"data.sets: nothing is left of the pairs ({counted}).", remedy="Leave the set out.")
    write_examples(folder / _EXAMPLES, kept)
    write_atomically(folder / _REPORT, json.dumps(report, indent=1, ensure_ascii=False).encode() + b"\n")


def _documents(dataset: SetRecipe) -> Iterator[tuple[str, str]]:
    """Id and text of every document that has a text."""
    with ProgressBar(f"{dataset.name}: read", total=None, unit="documents") as progress:
        for document in _lines_corpus(dataset.path) if dataset.is_lines else Corpus(dataset.path):
            text = document_text("" if dataset.drop_title else document.title, document.text)
            if text:
                yield document.id, text
            progress.advance(1)


def read_pairs(
    dataset: SetRecipe, documents: Mapping[str, str]
) -> tuple[list[Example], dict[str, set[str]], dict[str, int]]:
    """The pairs, all relevant documents that have a text, by what `same_text` makes of a query, and the counts so
    far."""
    if dataset.is_lines:
        queries, qrels = _lines_judged(dataset.path)
    else:
        queries, qrels = read_queries(dataset.path), read_qrels(qrels_file(dataset.path, dataset.split))
    examples: list[Example] = []
    relevant: dict[str, set[str]] = {}
    counts = {"pairs": 0, "without_text": 0, "beyond_positives": 0}
    for query_id, grades in qrels.items():
        positives = sorted((name for name, grade in grades.items() if grade > 0), key=lambda name: -grades[name])
        usable = [name for name in positives if name in documents and query_id in queries]
        counts["pairs"] += len(positives)
        counts["without_text"] += len(positives) - len(usable)
        counts["beyond_positives"] += len(usable[MOST_POSITIVES:])
        if usable:
            query = queries[query_id].strip()
            relevant.setdefault(same_text(query), set()).update(usable)
            examples += [Example(query_id, query, name) for name in usable[:MOST_POSITIVES]]
    return examples, relevant, counts


def content(text: str) -> str:
    """The words of a query that carry meaning, in alphabetical order and one spelling, joined by spaces.

    Case, punctuation, the order of words, English function words and the plural s make no difference. A query of
    function words alone keeps them, and one without words its signs.
    """
    words = re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold())
    kept = [word for word in words if word not in _FUNCTION_WORDS] or words
    singular = (re.sub(r"(?<=\w\w[^s])s$", "", word) for word in kept)
    return " ".join(sorted(singular)) or " ".join(text.split())


def _references(against: Sequence[Path], dataset: SetRecipe) -> list[str]:
    """All queries of the evaluation sets.

    Where the set is itself among them, the queries that it trains on are left out, unless another split has them too.
    """
    references: list[str] = []
    own = find_file(dataset.path, "queries")
    for path in against:
        file = find_file(path, "queries")
        queries = read_queries(file)
        if file.samefile(own) or file_sha256(file) == file_sha256(own):
            splits = {split.stem: read_qrels(split).keys() for split in (dataset.path / "qrels").glob("*.tsv")}
            others = set[str]().union(*(ids for split, ids in splits.items() if split != dataset.split))
            queries = {key: text for key, text in queries.items() if key in others or key not in splits[dataset.split]}
        references += queries.values()
    return references


def _drawn(examples: list[Example], dataset: SetRecipe, seed: int) -> list[Example]:
    """At most `limit` of the examples, in their order."""
    if dataset.limit is None or dataset.limit >= len(examples):
        return examples
    random = np.random.default_rng((seed % 2**64, zlib.crc32(dataset.name.encode())))
    return [examples[row] for row in sorted(random.permutation(len(examples))[: dataset.limit].tolist())]


def _plan(recipe: TrainRecipe, dataset: SetRecipe) -> dict[str, Any]:
    data, rule = recipe.data, recipe.data.decontaminate
    return {
        "corpus": file_sha256(find_file(dataset.path, "corpus")),
        "drop_title": dataset.drop_title,
        "format": _FORMAT,
        "queries": file_sha256(find_file(dataset.path, "queries")),
        "qrels": None if dataset.is_lines else file_sha256(qrels_file(dataset.path, dataset.split)),
        "own_negatives": dataset.negatives and file_sha256(dataset.negatives),
        "limit": dataset.limit,
        "seed": recipe.seed if dataset.limit is not None else None,
        "against": rule and sha256(json.dumps(_references(rule.against, dataset)).encode()).hexdigest(),
        "negatives": data.negatives and data.negatives.model_dump(),
    }


def write_examples(file: Path, examples: list[Example]) -> None:
    """Write what `read_examples` reads."""
    write_atomically(file, _FILE.dump_json(examples))


def read_examples(file: Path) -> list[Example]:
    """Read examples. Raises ResumeError."""
    try:
        return _FILE.validate_json(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ResumeError(f"{file}: can't be read: {error!r}.", remedy=f"Delete {file.parent}.") from error


_Id = Annotated[str, Field(coerce_numbers_to_str=True)]


class _Passage(BaseModel):
    """A document of a line."""

    docid: _Id = ""
    title: str = ""
    text: str

    @property
    def id(self) -> str:
        """Its id, or a digest of its text."""
        return self.docid or sha256(f"{self.title}\n{self.text}".encode()).hexdigest()[:32]


class _Line(BaseModel):
    query_id: _Id
    query: str = ""
    positive_passages: list[_Passage] = []
    negative_passages: list[_Passage] = []


def _lines_corpus(path: Path) -> Iterator[_Passage]:
    """The passages of a file, each once. Raises CorpusError for a bad line, and for two passages of one id."""
    seen: dict[str, int] = {}
    for number, line in _read_lines(path):
        for passage in [*line.positive_passages, *line.negative_passages]:
            content = hash((passage.title, passage.text))
            if passage.id not in seen:
                yield passage
            elif seen[passage.id] != content:
                raise CorpusError(
                    f'{path}, line {number}: the passage "{passage.id}" has another text than before.',
                    remedy="Give different passages different docids, or none.",
                )
            seen[passage.id] = content


def _lines_judged(path: Path) -> tuple[dict[str, str], dict[str, dict[str, int]]]:
    """The queries of a file, and its relevant passages as qrels. Raises CorpusError."""
    queries: dict[str, str] = {}
    qrels: dict[str, dict[str, int]] = {}
    for number, line in _read_lines(path):
        if line.query_id in queries or not line.query.strip():
            reason = "has no text" if not line.query.strip() else "stands twice"
            raise CorpusError(f'{path}, line {number}: query "{line.query_id}" {reason}.', remedy="Mend the line.")
        queries[line.query_id] = line.query
        qrels[line.query_id] = {passage.id: 1 for passage in line.positive_passages}
    return queries, qrels


def _read_negatives(path: Path) -> dict[str, list[str]]:
    """Ids of hard negatives by query id, in file order: of JSON lines, or of lines of a query's and a document's id,
    separated by a tab; further columns are not read. Raises CorpusError."""
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        return {line.query_id: [one.id for one in line.negative_passages] for _, line in _read_lines(path)}
    negatives: dict[str, list[str]] = {}
    for number, raw in read_lines(path):
        query, *rest = read_text(raw).split("\t")
        if not rest:
            raise CorpusError(
                f"{path}, line {number}: one column, where a query's and a document's id are expected.",
                remedy="Separate them by a tab.",
            )
        negatives.setdefault(query, []).append(rest[0])
    return negatives


def _read_lines(path: Path) -> Iterator[tuple[int, _Line]]:
    for number, raw in read_lines(path):
        try:
            yield number, _Line.model_validate_json(raw)
        except ValidationError as error:
            problem: Any = error.errors()[0]
            where = ".".join(str(part) for part in problem["loc"]) or "the line"
            raise CorpusError(
                f"{path}, line {number}: {where}: {problem['msg']}.",
                remedy="A line is a JSON object of query_id, query, positive_passages and negative_passages.",
            ) from error


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
