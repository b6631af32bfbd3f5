"""The whole model reads the head queries of every task once (see `artifacts.tokens.head_queries`)."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.files.arrays import read_array, write_array
from lightretriever.artifacts.files.workdir import check_plan, read_json
from lightretriever.artifacts.pipeline.build import head_has_sparse, head_plan, head_texts, work_head_files
from lightretriever.artifacts.pipeline.encoder import Encoder
from lightretriever.artifacts.pipeline.encoders import Encoders
from lightretriever.artifacts.pipeline.language_model import FULL_QUERY_TERMS
from lightretriever.artifacts.pipeline.recipe import Recipe
from lightretriever.artifacts.progress import ProgressBar
from lightretriever.artifacts.tokens.head_queries import HeadQueries, padded

__all__ = ["make_heads"]

_PART = 2048


def make_heads(recipe: Recipe, encoders: Encoders, where: dict[str, str]) -> None:
    """Encode the recipe's head queries behind the instruction of every task, into `WORK/tables/TASK/head`.

    What is there is kept, unless it was made of other queries, by another model, or elsewhere (`where`); then it is
    made again. A stopped call goes on after the last finished part. Raises CorpusError for a bad log, and BundleError
    for a query whose vector is zero or not finite.
    """
    texts, sparse = head_texts(recipe), head_has_sparse(recipe, encoders.impacts)
    for task, instruction in recipe.tasks.items() if texts else ():
        files = work_head_files(recipe, task, sparse=sparse)
        folder, plan = files[0].parent, head_plan(encoders.fingerprint, instruction, texts, sparse=sparse) | where
        if (folder / "plan.json").is_file() and read_json(folder / "plan.json") != plan:
            shutil.rmtree(folder)
        check_plan(folder / "plan.json", plan)
        if not all(file.is_file() for file in files):
            arrays = _encoded(encoders.dense, texts, instruction, folder, sparse=sparse)
            HeadQueries(texts, *arrays, lowercase=recipe.encode.lowercase).save(files, encoders.dense.hidden_size)
        for leftover in folder.glob("part-*.npy*"):
            leftover.unlink()


def _encoded(
    encoder: Encoder, texts: Sequence[str], instruction: str, folder: Path, *, sparse: bool
) -> tuple[npt.NDArray[np.float32], npt.NDArray[Any] | None]:
    """Vectors (n, H) of texts by the whole model, and padded sparse rows; made in parts, which lie in `folder`."""
    vectors, rows = [], []
    with ProgressBar("head", total=len(texts), unit="queries") as progress:
        for start in range(0, len(texts), _PART):
            chunk = texts[start : start + _PART]
            dense, terms = folder / f"part-{start:08d}.npy", folder / f"part-{start:08d}.sparse.npy"
            if dense.is_file():
                progress.skip(len(chunk))
            else:
                made = encoder.encode_queries(chunk, instruction, progress=progress)
                if sparse:
                    write_array(terms, padded(made.sparse or [], FULL_QUERY_TERMS))
                write_array(dense, made.dense)  # last, as the sign that the part is whole
            vectors.append(read_array(dense))
            rows += [read_array(terms)] if sparse else []
    return np.concatenate(vectors), np.concatenate(rows) if sparse else None
