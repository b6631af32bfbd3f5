"""Scores of the teachers for the training pairs, computed once, before the training that follows them.

WORK/teachers/SET/TEACHER/plan.json              what went in: files by SHA-256, pairs, and every setting that counts
WORK/teachers/SET/TEACHER/queries/, documents/   vectors in shards, while they are being made
WORK/teachers/SET/TEACHER/scores.npy             (n, C) float32; written last

TEACHER is the kind and a checksum of the teacher's section in the recipe without its weight, so stages may share
teachers and weigh them differently.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.corpus.beir import file_sha256
from lightretriever.artifacts.errors import ModelError, ResumeError
from lightretriever.artifacts.evaluation.systems import word_index
from lightretriever.artifacts.files.arrays import UNREADABLE, write_array
from lightretriever.artifacts.files.workdir import check_plan
from lightretriever.artifacts.pipeline.weights import LOAD_ERRORS, local_folder, software
from lightretriever.artifacts.progress import ProgressBar
from lightretriever.artifacts.training.negatives import SCRATCH
from lightretriever.artifacts.training.recipe import ContrastiveStage, TeacherRecipe, TrainRecipe
from lightretriever.artifacts.training.teacher_vectors import Pairs, VectorTeacher, load_teacher, vector_scores
from lightretriever.artifacts.training.types import Batch, TrainingSet

__all__ = ["pick", "teacher_scores"]

Floats = npt.NDArray[np.float32]
#: Files of a model that decide its output.
_DECISIVE = {".json", ".safetensors", ".bin", ".txt", ".model", ".npy"}


def teacher_scores(
    recipe: TrainRecipe, sets: Sequence[TrainingSet], stage: ContrastiveStage
) -> dict[str, npt.NDArray[np.float32]]:
    """The scores of a stage's teachers for each set's pairs: set name → (teachers, n examples, C) float32.

    Column 0 is the positive, column j the j-th of `Example.negatives`; NaN where an example has fewer. Empty for a
    stage without teachers. Scores that are there from an earlier call are read; a stopped call goes on with the shard
    that it had begun. The caller holds the lock of `recipe.work`; of several processes one goes first. Raises
    ModelError for a teacher that can't be loaded, and ResumeError, naming the differences, where the work directory
    holds scores of the same teacher made from other files, pairs or settings.
    """
    if stage.distil is None:
        return {}
    found: dict[str, list[Floats]] = {one.name: [] for one in sets}
    for teacher in stage.distil.teachers:
        identity = _identity(teacher)
        load = cache(lambda teacher=teacher: load_teacher(teacher, recipe))  # one model for all sets, freed after them
        for one in sets:
            found[one.name].append(_scores(teacher, identity, load, recipe, one))
    return {name: np.stack(scores) for name, scores in found.items()}


def pick(scores: Mapping[str, npt.NDArray[np.float32]], batch: Batch) -> Batch:
    """The batch with its teachers' scores: those of `teacher_scores` for the candidates that were drawn.

    A candidate that is neither the example's positive nor one of its negatives, but a random document, has NaN.
    """
    all_of_set = scores[batch.set.name]
    picked = np.full((len(all_of_set), len(batch.examples), len(batch.candidates[0])), np.nan, dtype=np.float32)
    for place, (example, candidates) in enumerate(zip(batch.examples, batch.candidates, strict=True)):
        columns = {name: column for column, name in enumerate((example.positive, *example.negatives))}
        for at, name in enumerate(candidates):
            if name in columns:
                picked[:, place, at] = all_of_set[:, example.row, columns[name]]
    return replace(batch, teachers=picked)


def _scores(
    teacher: TeacherRecipe, identity: str, load: Callable[[], VectorTeacher], recipe: TrainRecipe, one: TrainingSet
) -> Floats:
    """One teacher's scores of one set, (n, C) float32, memory-mapped."""
    if [example.row for example in one.examples] != list(range(len(one.examples))):
        raise ValueError(f"{one.name}: Example.row must be the example's place in its set.")
    section = teacher.model_dump(exclude={"weight"})
    name = f"{teacher.kind}-{hashlib.sha256(json.dumps(section, sort_keys=True).encode()).hexdigest()[:8]}"
    folder = recipe.work / "teachers" / one.name / name
    plan = _plan(section, identity, recipe, one)
    check_plan(folder / "plan.json", plan)
    file = folder / "scores.npy"
    if not file.is_file():
        if teacher.kind == "bm25":
            scores = _bm25_scores(one, folder)
        else:
            scores = vector_scores(load, Pairs.of(one), one.instruction, folder, plan)
        write_array(file, scores)
    for leftover in (folder / "queries", folder / "documents", *folder.glob(f"{SCRATCH}*")):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        found: Floats = np.load(file, mmap_mode="r")
    except UNREADABLE as error:
        raise ResumeError(f"{file}: can't be read: {error}.", remedy="Delete it and train again.") from error
    return found


def _bm25_scores(one: TrainingSet, folder: Path) -> Floats:
    """BM25 (k1 0.9, b 0.4) by Lucene, with the statistics of all documents of the set."""
    ordinals = {name: ordinal for ordinal, name in enumerate(one.documents)}
    width = 1 + max((len(example.negatives) for example in one.examples), default=0)
    scores = np.full((len(one.examples), width), np.nan, dtype=np.float32)
    with (
        word_index(folder, SCRATCH, one.documents, one.documents.values(), "teacher bm25: index") as words,
        ProgressBar("teacher bm25", total=len(one.examples), unit="queries") as progress,
    ):
        for row, example in enumerate(one.examples):
            wanted = np.array([ordinals[name] for name in (example.positive, *example.negatives)])
            scores[row, : len(wanted)] = words.scores(example.query, wanted)
            progress.advance(1)
    return scores


def _plan(section: dict[str, Any], identity: str, recipe: TrainRecipe, one: TrainingSet) -> dict[str, Any]:
    """What the scores depend on. BM25 depends on all documents, the others on those of the pairs alone."""
    ours, bm25 = section["kind"] == "lightretriever", section["kind"] == "bm25"
    names: Iterable[str] = (
        one.documents
        if bm25
        else dict.fromkeys(name for example in one.examples for name in (example.positive, *example.negatives))
    )
    return {
        "teacher": section,
        "files": identity,
        "examples": _digest([example.query, example.positive, *example.negatives] for example in one.examples),
        "documents": _digest([name, one.documents[name]] for name in names),
        "instruction": one.instruction if ours else None,
        "max_document_length": recipe.data.max_document_length if ours else None,
        "lowercase": recipe.lowercase if ours else None,
        "software": None if bm25 else software(),
    }


def _digest(rows: Iterable[list[str]]) -> str:
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row).encode() + b"\n")
    return digest.hexdigest()


def _identity(teacher: TeacherRecipe) -> str:
    """SHA-256 over the files of the teacher's model and adapter; the model itself need not be loaded for it."""
    files = [file for source in (teacher.path, teacher.adapter) if source is not None for file in _files(source)]
    return _digest([file.name, file_sha256(file)] for file in files)


def _files(source: str) -> list[Path]:
    if Path(source).is_file():  # GGUF
        return [Path(source)]
    try:
        folder = local_folder(source)
    except LOAD_ERRORS as error:
        raise ModelError(
            f"{source}: there is no such directory, nor a downloaded model of that name.",
            remedy="Download the teacher first (`hf download NAME`), or give a directory.",
        ) from error
    return sorted(file for file in folder.rglob("*") if file.suffix in _DECISIVE and file.is_file())
