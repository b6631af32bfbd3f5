"""The head queries of a build: the most frequent ones of a log, which the whole model reads once for every task (see
`artifacts.tokens.head_queries`). Only making them needs torch.
"""

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lightretriever.artifacts.corpus.lines import read_lines
from lightretriever.artifacts.documents.strict_json import read_text
from lightretriever.artifacts.dtypes import Float32Array
from lightretriever.artifacts.errors import BundleError, CorpusError, ResumeError
from lightretriever.artifacts.files.arrays import read_array, write_array
from lightretriever.artifacts.files.workdir import check_made, check_plan, read_json
from lightretriever.artifacts.pipeline.recipe import Recipe
from lightretriever.artifacts.progress import ProgressBar
from lightretriever.artifacts.tokens.head_queries import HeadQueries, normalised

if TYPE_CHECKING:
    from lightretriever.artifacts.pipeline.encoder import Encoder
    from lightretriever.artifacts.pipeline.encoders import Encoders

__all__ = ["head_files", "head_texts", "make_heads", "most_frequent", "read_heads"]

_PART = 2048


def head_texts(recipe: Recipe) -> list[str]:
    """The recipe's head queries, none without a section `head`. Raises CorpusError for a bad log."""
    head = recipe.head
    return [] if head is None else most_frequent(head.queries, head.top, lowercase=recipe.encode.lowercase)


def most_frequent(log: Path, top: int, *, lowercase: bool) -> list[str]:
    """The `top` most frequent queries of a log with a query a line, as `normalised` writes them, of equally frequent
    ones the earlier first.

    Raises CorpusError for a file that can't be read, a line that is no text or a JSON object, and a log without
    queries.
    """
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
            counts[normalised(read_text(line), lowercase=lowercase)] += 1
        except ValueError as error:
            raise CorpusError(f"{log}, line {number}: {error}.", remedy="Mend the line, or take it out.") from error
    counts.pop("", None)  # white space that only Unicode knows
    if not counts:
        raise CorpusError(f"head.queries is {log}: it has no query.", remedy="Give a file with a query a line.")
    return [text for text, _ in counts.most_common(top)]


def head_files(recipe: Recipe, task: str) -> list[Path]:
    """Where the head queries of a task lie in the work directory: texts and vectors."""
    folder = recipe.work / "tables" / task / "head"
    return [folder / "texts.json", folder / "vectors.npy"]


def make_heads(recipe: Recipe, encoders: "Encoders", where: dict[str, str]) -> None:
    """Encode the recipe's head queries behind the instruction of every task.

    What is there is kept, unless it was made of other queries, by another model, or elsewhere (`where`); then it is
    made again. A stopped call goes on after the last finished part. Raises CorpusError for a bad log, and BundleError
    for a query whose vector is zero or not finite.
    """
    texts = head_texts(recipe)
    for task, instruction in recipe.tasks.items() if texts else ():
        files = head_files(recipe, task)
        folder, plan = files[0].parent, _plan(encoders.fingerprint, instruction, texts) | where
        if (folder / "plan.json").is_file() and read_json(folder / "plan.json") != plan:
            shutil.rmtree(folder)
        check_plan(folder / "plan.json", plan)
        if not all(file.is_file() for file in files):
            vectors = _encoded(encoders.dense, texts, instruction, folder)
            HeadQueries(texts, vectors, lowercase=recipe.encode.lowercase).save(files, encoders.dense.hidden_size)
        for leftover in folder.glob("part-*.npy*"):
            leftover.unlink()


def read_heads(recipe: Recipe, facts: Mapping[str, Any]) -> dict[str, HeadQueries]:
    """The head queries of every task, as `make_heads` made them by the model of these `facts` (`backbone.json`). Raises
    ResumeError for other ones than the recipe's."""
    texts, heads = head_texts(recipe), dict[str, HeadQueries]()
    for task, instruction in recipe.tasks.items() if texts else ():
        files = head_files(recipe, task)
        check_made(files[0].with_name("plan.json"), _plan(facts["fingerprint"], instruction, texts), "table")
        try:
            heads[task] = HeadQueries.open(*files, lowercase=facts["lowercase"])
        except BundleError as error:
            remedy = "Delete its folder, and run `lightretriever build --from table` with this recipe."
            raise ResumeError(error.message, remedy=remedy) from error
    return heads


def _plan(fingerprint: str, instruction: str, texts: Sequence[str]) -> dict[str, Any]:
    """Everything that decides the vectors of head queries."""
    digest = hashlib.sha256(json.dumps(list(texts)).encode()).hexdigest()
    return {"model": fingerprint, "instruction": instruction, "queries": digest}


def _encoded(encoder: "Encoder", texts: Sequence[str], instruction: str, folder: Path) -> Float32Array:
    """Vectors (n, H) of texts by the whole model; made in parts, which lie in `folder`."""
    vectors = []
    with ProgressBar("head", total=len(texts), unit="queries") as progress:
        for start in range(0, len(texts), _PART):
            chunk = texts[start : start + _PART]
            file = folder / f"part-{start:08d}.npy"
            if file.is_file():
                progress.skip(len(chunk))
            else:
                write_array(file, encoder.encode_queries(chunk, instruction).dense)
                progress.advance(len(chunk))
            vectors.append(read_array(file))
    return np.concatenate(vectors)
