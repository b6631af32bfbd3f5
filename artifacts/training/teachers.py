"""Ensemble distillation: scores of several teachers for each example's candidates, kept on disk, and their sum.

    ŝ_j = (s_j - min s_j) / (max s_j - min s_j)        ŝ = S · Σ_j w_j ŝ_j / Σ_j w_j

over the candidates of one query (inference-free paper, equations 7 and 8).

WORK/teachers/STAGE/SET/plan.json       the teachers, and a digest of the examples
WORK/teachers/STAGE/SET/TEACHER.npy     (examples, 1 + negatives) float32: scores of the positive, then the negatives
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

import numpy as np

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.corpus.lines import read_lines
from lightretriever.artifacts.documents.strict_json import read_text
from lightretriever.artifacts.dtypes import Float32Array
from lightretriever.artifacts.errors import CorpusError, RecipeError
from lightretriever.artifacts.evaluation.searching import OpenSearcher
from lightretriever.artifacts.files.arrays import load_npy, write_array
from lightretriever.artifacts.files.workdir import check_plan
from lightretriever.artifacts.pipeline.loading import loading
from lightretriever.artifacts.progress import tracked
from lightretriever.artifacts.training.recipe import DistillationRecipe, TeacherRecipe
from lightretriever.artifacts.training.types import Batch, Example, TrainingSet

__all__ = ["Scorer", "Teachers", "ensemble", "scorer"]

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

    def __init__(self, recipe: DistillationRecipe, sets: Sequence[TrainingSet], folder: Path, score: "Scorer") -> None:
        """Score what isn't scored yet; the caller lets one process go first. Raises ResumeError where `folder` has the
        scores of other teachers or examples, and what the teachers raise."""
        self._recipe, self._scores = recipe, dict[str, list[Float32Array]]()
        for one in sets:
            plan = {"teachers": [teacher.model_dump(mode="json", exclude={"weight"}) for teacher in recipe.teachers]}
            content = repr([(example.query_id, example.positive, example.negatives) for example in one.examples])
            check_plan(folder / one.name / "plan.json", plan | {"examples": sha256(content.encode()).hexdigest()})
            files = [folder / one.name / f"{number}.npy" for number in range(len(recipe.teachers))]
            for file, teacher in zip(files, recipe.teachers, strict=True):
                if not file.is_file():
                    write_array(file, _rectangle(score(teacher, one), one.examples))
            self._scores[one.name] = [load_npy(file) for file in files]

    def logits(self, batch: Batch, names: Sequence[str]) -> Float32Array:
        """The ensemble's logits of a batch whose documents are `names` (M,), (B, M) float32; NaN for a document that is
        no candidate of the query."""
        most = max(map(len, batch.candidates))
        scores = np.full((len(self._recipe.teachers), len(batch.examples), most), np.nan, dtype=np.float32)
        for row, (example, candidates) in enumerate(zip(batch.examples, batch.candidates, strict=True)):
            own = {name: place for place, name in enumerate((example.positive, *example.negatives))}
            places = [own[name] for name in candidates]
            for number, known in enumerate(self._scores[batch.set.name]):
                scores[number, row, : len(places)] = known[example.row][places]
        made = ensemble(scores, [teacher.weight for teacher in self._recipe.teachers], self._recipe.scale)
        columns = {name: column for column, name in enumerate(names)}
        logits = np.full((len(batch.examples), len(names)), np.nan, dtype=np.float32)
        for row, candidates in enumerate(batch.candidates):
            logits[row, [columns[name] for name in candidates]] = made[row, : len(candidates)]
        return logits


Scorer = Callable[[TeacherRecipe, TrainingSet], Iterable[list[float]]]


def scorer(open_searcher: OpenSearcher | None, device: str) -> Scorer:
    """Scores of each example's candidates, the positive first, by any teacher of a recipe. A `bundle` needs the search
    engine; of a set whose ids the bundle doesn't have, RecipeError is raised."""

    def score(teacher: TeacherRecipe, one: TrainingSet) -> Iterator[list[float]]:
        if teacher.bundle is not None:
            yield from _by_bundle(teacher, one, open_searcher)
        elif teacher.cross_encoder is not None:
            yield from _by_cross_encoder(teacher.cross_encoder.replace("{set}", one.name), one, device)
        else:
            known = _read_scores(Path(str(teacher.scores).replace("{set}", one.name)))
            for example in one.examples:
                own = known.get(example.query_id, {})
                yield [own.get(name, np.nan) for name in (example.positive, *example.negatives)]

    return score


def _by_bundle(teacher: TeacherRecipe, one: TrainingSet, open_searcher: OpenSearcher | None) -> Iterator[list[float]]:
    if open_searcher is None:
        raise RecipeError("A bundle is a teacher, but there is no search engine here.", remedy="Use the command train.")
    path = Path(str(teacher.bundle).replace("{set}", one.name))
    bundle, known = Bundle.open(path), dict[str, dict[str, float]]()
    task = bundle.manifest.default_task
    with open_searcher(bundle) as searcher:
        for example in tracked(one.examples, f"{one.name}: teacher", total=len(one.examples), unit="queries"):
            if example.query not in known:
                hits = searcher.search(
                    example.query, task=task, mode=teacher.leg, k=_DEPTH, candidates=_DEPTH, fusion=None
                )
                known = {example.query: {hit.id: hit.score for hit in hits or []}}
            scores = known[example.query]
            last = min(scores.values(), default=np.nan)
            yield [scores.get(name, last) for name in (example.positive, *example.negatives)]


def _by_cross_encoder(path: str, one: TrainingSet, device: str) -> Iterator[list[float]]:
    from sentence_transformers import CrossEncoder  # slow to import

    with loading(f"{path}: the cross-encoder can't be loaded", path):
        model = CrossEncoder(path, device=device)
    for example in tracked(one.examples, f"{one.name}: teacher", total=len(one.examples), unit="queries"):
        pairs = [(example.query, one.documents[name]) for name in (example.positive, *example.negatives)]
        yield model.predict(pairs, batch_size=_PAIRS, show_progress_bar=False).tolist()


def _read_scores(file: Path) -> dict[str, dict[str, float]]:
    """Scores by query and document id. Raises CorpusError for a bad line."""
    scores: dict[str, dict[str, float]] = {}
    for number, line in read_lines(file):
        try:
            query, document, score = read_text(line).split("\t")
            if not np.isfinite(value := float(score)):
                raise ValueError
        except ValueError as error:
            raise CorpusError(
                f"{file}, line {number}: not a query's id, a document's id and a finite number.",
                remedy="Separate them by tabs.",
            ) from error
        scores.setdefault(query, {})[document] = value
    return scores


def _rectangle(rows: Iterable[list[float]], examples: Sequence[Example]) -> Float32Array:
    width = 1 + max((len(example.negatives) for example in examples), default=0)
    array = np.full((len(examples), width), np.nan, dtype=np.float32)
    for number, row in enumerate(rows):
        array[number, : len(row)] = row
    return array
