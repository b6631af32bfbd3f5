"""How much words should weigh and how many to add, by development queries: `expand` of a recipe, and variants of it.

    python -m research.quality.expansion RECIPE --data DIR --work runs/quality --system NAME --terms 8 16 32

RECIPE and options are those of research/quality/evaluate.py, whose bundles and encoded documents in --work are used;
those of a collection that is not there are built first. Every setting makes the impacts of all documents from one
encoding, in an index of its own, and is searched with the development queries of WikiQA, TREC-QA and RACE and SciFact's
training claims: the sparse leg alone, and with the dense leg at equal weights. Beside the grid of --weights and --terms
there are, each with the default setting but for one thing:

    plain      no expansion
    b          b 0 and 0.2, BM25's weight of a document's length, in place of 0.4
    finer      200 impacts a unit of BM25 in place of 40, and no highest impact
    lacking    words that the corpus lacks may be added, too, where the tokenizer has them whole
    pieces     the row of a form is divided by its number of tokens, or by the root of it
    forms      every form of a word counts the same, or its most frequent one alone
    length     λ falls, or rises, with the root of a document's length over the average

--results gets nDCG@10 by collection and on the average, with the difference from the default setting and its 95 %
interval: a bootstrap that draws queries within each collection.
"""

import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from lightretriever.artifacts.bundle.manifest import ExpansionInfo
from lightretriever.artifacts.bundle.query_sample import query_vectors
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.dense.index import DenseIndex
from lightretriever.artifacts.documents.bounds import MAX_IMPACT
from lightretriever.artifacts.evaluation.report import environment
from lightretriever.artifacts.evaluation.runs import JudgedQueries, Ranking, ndcg_per_query, ranking, read_judged
from lightretriever.artifacts.files.workdir import read_json
from lightretriever.artifacts.pipeline import expansion
from lightretriever.artifacts.pipeline.bm25_impacts import Bm25Encoder
from lightretriever.artifacts.pipeline.build import sparse_leg
from lightretriever.artifacts.pipeline.encoded import ImpactRow, TermCounts, TermNumbers, TextStore, csr
from lightretriever.artifacts.pipeline.recipe import Recipe, read_recipe
from lightretriever.artifacts.pipeline.terms import SparseLeg
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.artifacts.sparse.writer import ImpactIndexWriter
from lightretriever.loadtest.program import option, program
from lightretriever.loadtest.record import write_json
from lightretriever.service.search.fusion import align, fuse_linear
from research.quality import evaluate
from research.quality.evaluate import Collection
from research.quality.recorded import RESULTS

__all__ = ["DEVELOPMENT", "Setting", "main"]

DEVELOPMENT: Final = (
    Collection("eval/wikiqa", "", split="dev"),
    Collection("eval/trecqa", "", split="dev"),
    Collection("train/race-qa", "", part=True, split="dev"),
    Collection("eval/scifact", "", split="train"),
)
LEGS: Final = ("sparse", "hybrid")
_CANDIDATES: Final = 100
_SAMPLE: Final = 1000  # documents by which the unit is measured
_RESAMPLES: Final = 10_000
_LEAST_LETTERS: Final = 3  # of a word that the corpus lacks
_PLAIN: Final = 4000  # impacts a unit, as bundles without expansion have them

Matrix = npt.NDArray[np.float32]
Values = dict[str, npt.NDArray[np.float64]]
"""nDCG@10 of every query, by collection."""


@dataclass(frozen=True)
class Setting:
    """One way to make impacts.

    λ, 0 for BM25 alone; the number of words that are added; b; impacts per unit of BM25, and the highest one; whether
    words may be added that the corpus lacks; the power of a form's number of tokens by which its row is divided; how
    forms of a word are weighed; the power of a document's length by which λ is multiplied.
    """

    weight: float = ExpansionInfo().weight
    terms: int = ExpansionInfo().terms
    b: float = 0.4
    impacts: int = 40
    highest: int = 511
    lacking: bool = False
    pieces: float = 0.0
    forms: str = "frequency"
    length: float = 0.0

    def __str__(self) -> str:
        if not self.weight:
            return "plain"
        b = f", b {self.b:g}" * (self.b != Setting.b)
        finer = f", {self.impacts} impacts a unit" * (self.impacts != Setting.impacts)
        pieces = f", rows / tokens^{self.pieces:g}" * bool(self.pieces)
        forms = f", {self.forms} form" * (self.forms != Setting.forms)
        length = f", λ · length^{self.length:g}" * bool(self.length)
        return (
            f"λ {self.weight:g}, k {self.terms}{b}{finer}{', lacking words too' * self.lacking}{pieces}{forms}{length}"
        )


@dataclass(frozen=True, eq=False)
class Searched:
    """A collection, encoded, with its judged queries and their vectors (q, D)."""

    judged: JudgedQueries
    texts: list[str]
    ids: list[str]
    vectors: Matrix
    leg: SparseLeg
    table: Matrix
    tokenizer: Path
    dense: DenseIndex
    queries: Matrix

    @cache  # noqa: B019 - few, and as long as the program
    def counted(self, impacts: int = 40, b: float = 0.4) -> tuple[Bm25Encoder, list[ImpactRow]]:
        """The counts of the corpus and the BM25 impacts of its documents, so many a unit."""
        bm25 = Bm25Encoder.of(
            TermCounts.of(self.leg.vocabulary.terms_of(self.texts)),
            self.leg.vocabulary,
            quantization=impacts,
            k1=self.leg.k1,
            b=b,
        )
        return bm25, bm25.impacts(self.texts)

    @cached_property
    def words(self) -> Matrix:
        """The rows of the corpus' words, which have the same numbers in all counts."""
        return expansion.word_rows(self.texts, self.counted()[0], self.leg.tokenizer, self.table)

    @cached_property
    def forms(self) -> list[tuple[int, int, npt.NDArray[np.int32]]]:
        """The forms of the corpus' words: the word's number, how often it is spelt so, and the form's tokens."""
        bm25, found = self.counted()[0], Counter[str]()
        for text in self.texts:
            found.update(expansion.FORM.findall(text.lower()))
        spelt = list(found)
        bags = self.leg.tokenizer.as_queries(spelt)
        each = zip(spelt, bm25.vocabulary.terms_of(spelt), bags, strict=True)
        numbered = ((bm25.numbers.find(terms[0]), found[form], ids) for form, terms, ids in each if len(terms) == 1)
        return [(number, count, ids) for number, count, ids in numbered if number is not None and len(ids)]

    def variant(self, setting: "Setting") -> Matrix:
        """The rows of the corpus' words with other weights of tokens and forms."""
        rows, sums = np.zeros_like(self.words), np.zeros(len(self.words), np.float32)
        most = np.zeros(len(self.words), np.int64)
        for number, count, ids in self.forms:
            if number >= len(rows):
                continue
            row = self.table[ids].sum(axis=0) / np.float32(len(ids) ** setting.pieces)
            if setting.forms == "commonest":
                if count > most[number]:
                    rows[number], sums[number], most[number] = row, 1, count
            else:
                weight = np.float32(count if setting.forms == "frequency" else 1)
                rows[number] += weight * row
                sums[number] += weight
        rows[sums > 0] /= sums[sums > 0, None]
        return rows

    @classmethod
    def of(cls, given: Namespace, collection: Collection) -> "Searched":
        """Read what evaluate.py built for a collection."""
        recipe = read_recipe(Path(evaluate.build(given, collection)["output"]).with_suffix(".yaml"), Recipe)
        store, documents = TextStore(recipe.work / "encode"), list(recipe.corpus.open())
        vectors = store.whole().dense.astype(np.float32)
        leg, bundle = sparse_leg(recipe, store), Bundle.open(recipe.output)
        judged = read_judged(collection.path(given), collection.split)
        bags = list(bundle.tokenizer().as_queries(judged.queries.values()))
        return cls(
            judged=judged,
            texts=[document.full_text for document in documents],
            ids=[document.id for document in documents],
            vectors=vectors / np.linalg.norm(vectors, axis=1, keepdims=True),
            leg=leg,
            table=leg.expand[1] if leg.expand else np.empty((0, vectors.shape[1]), np.float32),
            tokenizer=recipe.work / "tokenizer.json",
            dense=bundle.dense(),
            queries=query_vectors(bundle.table(bundle.manifest.default_task), bags),
        )


def measured(searched: Searched, setting: Setting, scratch: Path) -> Values:
    """nDCG@10 of every query by the sparse leg alone, and with the dense one."""
    vocabulary, judged = searched.leg.vocabulary, searched.judged
    bm25, rows = searched.counted(setting.impacts, setting.b)
    if setting.weight:
        words = searched.words if (setting.pieces, setting.forms) == (0.0, Setting.forms) else searched.variant(setting)
        if setting.lacking:
            bm25, words = with_lacking(searched, bm25, words)
        info = ExpansionInfo(weight=setting.weight, terms=setting.terms)
        mean, sample = searched.vectors.mean(axis=0), slice(None, None, -(-len(rows) // _SAMPLE))
        expand = expansion.Expansion.of(info, words, bm25, mean, searched.vectors[sample], rows[sample])
        with patch.object(expansion, "_MOST", setting.highest):
            rows = expanded(expand, searched, rows, setting)
    runs: dict[str, dict[str, Ranking]] = {leg: {} for leg in LEGS}
    with TemporaryDirectory(prefix="expansion-", dir=scratch) as folder:
        with ImpactIndexWriter(Path(folder) / "index") as writer:
            writer.add(searched.ids, [b"{}"] * len(rows), *csr(rows), names=bm25.numbers.names)
        with ImpactIndex.open(Path(folder) / "index") as index:
            terms = vocabulary.terms_of(list(judged.queries.values()))
            for query, words_of_query, vector in zip(judged.queries, terms, searched.queries, strict=True):
                for leg, (ordinals, scores) in searches(searched.dense, index, words_of_query, vector).items():
                    hits = zip(ordinals.tolist(), scores.tolist(), strict=True)
                    runs[leg][query] = ranking([(searched.ids[ordinal], score) for ordinal, score in hits])
    found = {leg: ndcg_per_query(judged.qrels, run) for leg, run in runs.items()}
    return {leg: np.array([values[query] for query in judged.queries]) for leg, values in found.items()}


def expanded(
    expand: expansion.Expansion, searched: Searched, rows: list[ImpactRow], setting: Setting
) -> list[ImpactRow]:
    """Expand every document, with λ by its length in steps of a quarter where the setting says so."""
    if not setting.length:
        return expand.impacts(searched.vectors, rows)
    lengths = np.array([len(text.split()) for text in searched.texts], np.float64)
    factors = np.round(4 * np.maximum(lengths / lengths.mean(), 1e-3) ** setting.length) / 4
    found = list(rows)
    for factor in np.unique(factors):
        places = np.flatnonzero(factors == factor)
        part = replace(expand, unit=expand.unit * float(factor))
        made = part.impacts(searched.vectors[places], [rows[place] for place in places])
        for place, row in zip(places, made, strict=True):
            found[place] = row
    return found


def searches(
    dense: DenseIndex, index: ImpactIndex, terms: Sequence[str], vector: Matrix
) -> Mapping[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.floating]]]:
    """What the sparse leg finds, and both, fused as the service does at equal weights."""
    weights = np.ones(len(terms), np.float32)
    sparse = index.search(terms, weights, _CANDIDATES)
    table = align([dense.search(vector, _CANDIDATES), sparse])
    table.fill(0, dense.scores(vector, table.missing(0)))
    table.fill(1, index.scores(terms, weights, table.missing(1)))
    fused = fuse_linear(table, (0.5, 0.5))
    return {"sparse": sparse, "hybrid": (table.ordinals[fused.order], fused.scores[fused.order])}


def with_lacking(searched: Searched, bm25: Bm25Encoder, words: Matrix) -> tuple[Bm25Encoder, Matrix]:
    """Counts and rows of the words of a corpus, and of those that it lacks and the tokenizer has in one token; they
    count as words of two documents, the fewest that a word which is added must have."""
    every = sorted(Tokenizer.from_file(str(searched.tokenizer)).get_vocab())
    spelt = [form for form in every if form.isalpha() and len(form) >= _LEAST_LETTERS]
    forms: dict[str, list[int]] = {}
    for ids, terms in zip(searched.leg.tokenizer.as_queries(spelt), bm25.vocabulary.terms_of(spelt), strict=True):
        if len(ids) == len(terms) == 1 and bm25.numbers.find(terms[0]) is None:
            forms.setdefault(terms[0], []).append(int(ids[0]))
    numbers = TermNumbers([*bm25.numbers.names, *forms])
    new = [searched.table[ids].mean(axis=0) for ids in forms.values()]
    frequencies = np.concatenate([bm25.frequencies, np.full(len(new), 2, np.int64)])
    return replace(bm25, numbers=numbers, frequencies=frequencies), np.concatenate([words, np.array(new, np.float32)])


def content(file: Path, system: str, found: Mapping[Setting, Mapping[str, Values]]) -> dict[str, Any]:
    """The file of results, with these of one system in place of older ones."""
    default = found[Setting()]
    rows = []
    for setting, values in found.items():
        row: dict[str, Any] = {"setting": str(setting), **asdict(setting)}
        for leg in LEGS:
            means = {name: float(each.mean()) for name, each in values[leg].items()}
            row[leg] = {name: round(mean, 5) for name, mean in means.items()}
            row[leg]["average"] = round(sum(means.values()) / len(means), 5)
            row[f"{leg}_difference"] = difference(values[leg], default[leg])
        rows.append(row)
    queries = {name: len(each) for name, each in default["sparse"].items()}
    systems = read_json(file)["systems"] if file.is_file() else {}
    systems[system] = {"queries": queries, "default": str(Setting()), "rows": rows, "environment": environment()}
    return {"systems": systems}


def difference(values: Values, others: Values) -> list[float]:
    """The mean over the collections of the mean difference, and its 95 % interval by bootstrap."""
    random, drawn = np.random.default_rng(0), np.zeros(_RESAMPLES)
    means = []
    for name, each in values.items():
        one = each - others[name]
        means.append(one.mean())
        counts = random.multinomial(len(one), np.full(len(one), 1 / len(one)), _RESAMPLES)
        drawn += counts @ one / len(one) / len(values)
    low, high = np.percentile(drawn, (2.5, 97.5))
    return [round(float(value), 5) for value in (np.mean(means), low, high)]


@program(
    *evaluate.OPTIONS,
    option("--results", RESULTS / "expansion.json"),
    option("--weights", [0.25, 0.5], "λ, several"),
    option("--terms", [16], "words to add, several numbers"),
)
def main(given: Namespace) -> None:
    """Measure every setting on every collection, and write the results."""
    settings = [Setting(weight=0, terms=0, impacts=_PLAIN)]
    settings += [Setting(weight, terms) for weight in given.weights for terms in given.terms]
    settings += [Setting(b=0.0), Setting(b=0.2)]
    settings += [Setting(impacts=200, highest=MAX_IMPACT), Setting(lacking=True)]
    settings += [Setting(pieces=0.5), Setting(pieces=1.0), Setting(forms="equal"), Setting(forms="commonest")]
    settings += [Setting(length=-0.5), Setting(length=0.5)]
    found = {setting: dict[str, Values]() for setting in dict.fromkeys([Setting(), *settings])}
    for collection in DEVELOPMENT:
        searched = Searched.of(given, collection)
        for setting, values in found.items():
            for leg, each in measured(searched, setting, given.work).items():
                values.setdefault(leg, {})[collection.name] = each
                print(collection.name, setting, leg, f"{each.mean():.4f}", file=sys.stderr)
    write_json(given.results, content(given.results, given.system, found))


if __name__ == "__main__":
    sys.exit(main())
