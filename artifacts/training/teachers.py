"""Ensemble distillation: scores of several teachers for each example's candidates, kept on disk, and their sum.

    ŝ_j = (s_j - min s_j) / (max s_j - min s_j)        ŝ = S · Σ_j w_j ŝ_j / Σ_j w_j

over the candidates of one query (inference-free paper, equations 7 and 8).

WORK/teachers/STAGE/SET/plan.json       the teachers, and a digest of the examples
WORK/teachers/STAGE/SET/TEACHER.npy     (examples, 1 + negatives) float32: scores of the positive, then the negatives
"""

from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

import numpy as np

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.corpus.lines import read_lines
from lightretriever.artifacts.documents.document import read_text
from lightretriever.artifacts.dtypes import Float32Array
from lightretriever.artifacts.errors import CorpusError, RecipeError
from lightretriever.artifacts.evaluation.searching import OpenSearcher, SearchMode
from lightretriever.artifacts.files.arrays import load_npy, write_array
from lightretriever.artifacts.files.workdir import check_plan
from lightretriever.artifacts.pipeline.loading import loading
from lightretriever.artifacts.reports import tracked
from lightretriever.artifacts.training.mixture import Batch, Example, TrainingSet
from lightretriever.artifacts.training.recipe import DistillationRecipe, TeacherRecipe

_DEPTH: Final = 1000  # hits of a bundle's leg; a candidate that is none of them scores as the last one
_PAIRS: Final = 64  # of a query and a document, read by a cross-encoder at once


def ensemble(scores: Float32Array, weights: Sequence[float], scale: float) -> Float32Array:
    """The logits (B, C) float32 of T teachers' scores (T, B, C); NaN where any of them has none.

    A teacher that scores all candidates of a query alike says nothing of them: its share is 0.
    """
    low, high = (extreme.reduce(scores, axis=2, keepdims=True) for extreme in (np.fmin, np.fmax))
    widths = np.where(high > low, high - low, 1)
    shares = np.asarray(weights, dtype=np.float32) / np.sum(weights, dtype=np.float32)
    made: Float32Array = (scale * np.einsum("t,tbc->bc", shares, (scores - low) / widths)).astype(np.float32)
    return made


class Teachers:
    """The scores of an ensemble, mapped from disk."""

    def __init__(
        self,
        recipe: DistillationRecipe,
        sets: Sequence[TrainingSet],
        folder: Path,
        open_searcher: OpenSearcher | None,
        device: str,
    ) -> None:
        """Score what isn't scored yet; the caller lets one process go first. Bundles need `open_searcher`. Raises
        ResumeError where `folder` has the scores of other teachers or examples, and what the teachers raise."""
        self._recipe, self._scores = recipe, dict[str, list[Float32Array]]()
        self._rows = {one.name: {example: row for row, example in enumerate(one.examples)} for one in sets}
        for dataset in sets:
            plan = {"teachers": [teacher.model_dump(mode="json", exclude={"weight"}) for teacher in recipe.teachers]}
            content = repr([(example.query_id, example.positive, example.negatives) for example in dataset.examples])
            check_plan(folder / dataset.name / "plan.json", plan | {"examples": sha256(content.encode()).hexdigest()})
            files = [folder / dataset.name / f"{number}.npy" for number in range(len(recipe.teachers))]
            for file, teacher in zip(files, recipe.teachers, strict=True):
                if not file.is_file():
                    write_array(file, _scored(teacher, dataset, open_searcher, device))
            self._scores[dataset.name] = [load_npy(file) for file in files]

    def logits(self, batch: Batch, names: Sequence[str]) -> Float32Array:
        """The ensemble's logits of a batch whose documents are `names` (M,), (B, M) float32; NaN for a document that is
        no candidate of the query."""
        columns = {name: column for column, name in enumerate(names)}
        scores = np.full((len(self._recipe.teachers), len(batch.examples), len(names)), np.nan, dtype=np.float32)
        for row, (example, candidates) in enumerate(zip(batch.examples, batch.candidates, strict=True)):
            own = {name: place for place, name in enumerate(_candidates(example))}
            wanted, place = [own[name] for name in candidates], self._rows[batch.set.name][example]
            for number, known in enumerate(self._scores[batch.set.name]):
                scores[number, row, [columns[name] for name in candidates]] = known[place, wanted]
        return ensemble(scores, [teacher.weight for teacher in self._recipe.teachers], self._recipe.scale)


def _scored(
    teacher: TeacherRecipe, dataset: TrainingSet, open_searcher: OpenSearcher | None, device: str
) -> Float32Array:
    """A teacher's scores of each example's candidates, the positive first, (examples, 1 + negatives); NaN where it has
    none. Raises CorpusError where it has none at all."""
    path = str(teacher.bundle or teacher.cross_encoder or teacher.scores).replace("{set}", dataset.name)
    if teacher.bundle is not None:
        rows = _by_bundle(path, teacher.leg, dataset, open_searcher)
    elif teacher.cross_encoder is not None:
        rows = _by_cross_encoder(path, dataset, device)
    else:
        rows = _by_file(path, dataset)
    count, most = len(dataset.examples), max(len(_candidates(example)) for example in dataset.examples)
    scores = np.full((count, most), np.nan, np.float32)
    for number, row in enumerate(tracked(rows, f"{dataset.name}: teacher", total=count, unit="queries")):
        scores[number, : len(row)] = row
    if np.isnan(scores).all():
        raise CorpusError(
            f"{path}: this teacher scores no candidate of the set {dataset.name}.",
            remedy="Name one that knows the ids of the set's queries and documents.",
        )
    return scores


def _candidates(example: Example) -> tuple[str, ...]:
    """The ids of an example's documents."""
    return example.positive, *example.negatives


def _by_bundle(
    path: str, leg: SearchMode, dataset: TrainingSet, open_searcher: OpenSearcher | None
) -> Iterator[list[float]]:
    if open_searcher is None:
        raise RecipeError("A bundle is a teacher, but there is no search engine here.", remedy="Use the command train.")
    bundle, known = Bundle.open(Path(path)), dict[str, dict[str, float]]()
    task = bundle.manifest.default_task
    with open_searcher(bundle) as searcher:
        for example in dataset.examples:
            if example.query not in known:
                hits = searcher.search(example.query, task=task, mode=leg, k=_DEPTH, candidates=_DEPTH, fusion=None)
                known = {example.query: dict(hits or [])}
            scores = known[example.query]
            last = min(scores.values(), default=np.nan)
            yield [scores.get(name, last) for name in _candidates(example)]


def _by_cross_encoder(path: str, dataset: TrainingSet, device: str) -> Iterator[list[float]]:
    from sentence_transformers import CrossEncoder  # slow to import

    with loading(f"{path}: the cross-encoder can't be used", path, remedy="Name a cross-encoder that gives one score."):
        model = CrossEncoder(path, device=device)
        for example in dataset.examples:
            pairs = [(example.query, dataset.documents[name]) for name in _candidates(example)]
            scores = model.predict(pairs, batch_size=_PAIRS, show_progress_bar=False)
            if scores.ndim != 1:
                raise ValueError(f"it gives {scores.shape[1]} values for a query and a document")
            yield scores.tolist()


def _by_file(path: str, dataset: TrainingSet) -> Iterator[list[float]]:
    """Raises CorpusError for a bad line."""
    known: dict[tuple[str, str], float] = {}
    for number, raw in read_lines(Path(path)):
        line = read_text(raw)
        try:
            query, document, score = line.split("\t")
            known[query, document] = float(score)
            if not np.isfinite(known[query, document]):
                raise ValueError
        except ValueError as error:
            raise CorpusError(
                f"{path}, line {number}: {line!r} is not a query's id, a document's id and a finite number.",
                remedy="Separate them by tabs.",
            ) from error
    for example in dataset.examples:
        yield [known.get((example.query_id, name), np.nan) for name in _candidates(example)]
