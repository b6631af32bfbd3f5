"""Build and evaluate one system on every test collection, for the table of results.

    python -m research.quality.evaluate RECIPE --data DIR --work runs/quality --system NAME [-- OPTIONS OF evaluate]

RECIPE is a recipe of a bundle, of which model, encoding and index are taken; name, corpus, tasks and paths are filled
in for each collection. A bi-encoder's recipe has a section `distil`. One build gives the rows of `dense`, `sparse`,
`hybrid` and `bm25`. `lightretriever evaluate` gets the arguments after `--`: `-- --only hybrid --drop-own` measures
the same bundle again under another name.

    WORK/DATASET/work/              intermediate files, shared by recipes that encode alike
    WORK/DATASET/RECIPE.yaml        the recipe
    WORK/DATASET/RECIPE/            the bundle
    WORK/DATASET/NAME-evaluation/   report and runs
    WORK/DATASET-test/DATASET-test/ of a collection made for training: what its test split judges

Stopped and started again, it goes on: bundles that are there are kept, results that are recorded are skipped.
"""

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lightretriever.artifacts.bundle.manifest import MANIFEST_FILE, read_manifest
from lightretriever.artifacts.corpus.beir import Corpus, find_file, read_qrels, read_queries
from lightretriever.artifacts.errors import RecipeError
from lightretriever.artifacts.files.atomic import new_folder
from lightretriever.loadtest.program import REST, option, program, typed_command
from research.quality.recorded import RESULTS, evaluate_and_record, read_rows, run

TASK = "search"


@dataclass(frozen=True)
class Collection:
    """A collection in BEIR layout: its folder below --data, and what a query asks for. With `part`, only the documents
    that its `split` judges are searched."""

    folder: str
    instruction: str
    skip_bad: bool = False
    part: bool = False
    split: str = "test"

    @property
    def name(self) -> str:
        """Its name in the results: the last name of its folder, with the split where it is a part."""
        return Path(self.folder).name + (f"-{self.split}" if self.part else "")

    def path(self, given: Namespace) -> Path:
        """Where its files lie, or the part's will."""
        work, data = Path(given.work), Path(given.data)
        return work / self.name / self.name if self.part else data / self.folder


COLLECTIONS = (
    Collection("eval/scifact", "Given a scientific claim, retrieve documents that support or refute the claim"),
    Collection("eval/vaswani", "Given a query on electronics or physics, retrieve relevant abstracts"),
    # Two of its documents are empty.
    Collection("eval/cranfield", "Given a question on aerodynamics, retrieve relevant abstracts", skip_bad=True),
    Collection("eval/cacm", "Given a query on computer science, retrieve relevant titles and abstracts"),
    Collection("eval/wikiqa", "Given a question, retrieve sentences that answer the question"),
    Collection("eval/trecqa", "Given a question, retrieve sentences that answer the question"),
    # 27,931 passages of 350 tokens, of which the test split judges 1,130.
    Collection("train/race-qa", "Given a question or a statement on a passage, retrieve the passage", part=True),
)


def measure(given: Namespace, collection: Collection, options: Sequence[str]) -> None:
    """Build the bundle of one collection and evaluate it, where that is not done. Raises RecipeError when the bundle
    that is there was made by another recipe, and what the two commands raise."""
    if collection.part and not collection.path(given).is_dir():
        write_judged_part(given.data / collection.folder, collection.path(given), collection.split)
    content = bundle_recipe(given, collection)
    bundle = Path(content["output"])
    recipe = write_recipe(bundle.parent / f"{bundle.name}.yaml", content)
    if not (bundle / MANIFEST_FILE).is_file():
        run(["build", str(recipe)])
    command = evaluate_command(given, collection, content, options)
    digest, recorded = read_manifest(bundle).digest, typed_command(["lightretriever", *command])
    for row in read_rows(given.results):
        if (row["dataset"], row["command"], row.get("bundle", digest)) == (collection.name, recorded, digest):
            print(f"{collection.name}: recorded already", file=sys.stderr)
            return
    length = (content.get("encode") or {}).get("max_length")
    note = f"documents cut to {length} tokens" if length else ""
    evaluate_and_record(command, given.results, given.system, note)


def write_judged_part(collection: Path, output: Path, split: str) -> None:
    """Write the documents, queries and judgments of a split alone to the new folder `output`, in BEIR layout. Fewer
    documents are easier to search: figures of the part are to be compared with each other only."""
    judgments = collection / "qrels" / f"{split}.tsv"
    qrels = read_qrels(judgments)
    wanted = {document for judged in qrels.values() for document in judged}
    documents = [document for document in Corpus(collection) if document.id in wanted]
    queries = read_queries(find_file(collection, "queries"))
    with new_folder(output, overwrite=False, marker="corpus.jsonl") as folder:
        (folder / "qrels").mkdir()
        (folder / "qrels" / f"{split}.tsv").write_bytes(judgments.read_bytes())
        (folder / "corpus.jsonl").write_bytes(b"".join(document.raw + b"\n" for document in documents))
        lines = [json.dumps({"_id": name, "text": queries[name]}, ensure_ascii=False) + "\n" for name in qrels]
        (folder / "queries.jsonl").write_text("".join(lines), encoding="utf-8")


def bundle_recipe(given: Namespace, collection: Collection) -> dict[str, Any]:
    """Return the recipe for one collection."""
    content: dict[str, Any] = yaml.safe_load(given.recipe.read_text(encoding="utf-8"))
    if given.model:
        content["model"] = {**(content.get("model") or {}), "path": given.model}
    folder = given.work / collection.name
    return content | {
        "name": f"{collection.name}-{given.recipe.stem}",
        "corpus": {"path": str(collection.path(given)), "name": collection.name, "skip_bad": collection.skip_bad},
        # A bi-encoder was trained without such an instruction, or brings its own prompt.
        "tasks": {TASK: "" if content["kind"] == "encoder" else collection.instruction},
        "default_task": TASK,
        "work": str(folder / "work"),
        "output": str(folder / given.recipe.stem),
    }


def write_recipe(file: Path, content: dict[str, Any]) -> Path:
    """Write the recipe of a bundle, and return its file. Raises RecipeError when another one stands there."""
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    if file.is_file() and file.read_text(encoding="utf-8") != text:
        raise RecipeError(
            f"{file}: was written with other settings than these.", remedy="Use another --work, or remove its folder."
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def evaluate_command(
    given: Namespace, collection: Collection, content: dict[str, Any], options: Sequence[str]
) -> list[str]:
    """The arguments of `lightretriever evaluate`."""
    bundle, dataset = content["output"], str(collection.path(given))
    output = given.work / collection.name / f"{given.system}-evaluation"
    command = ["evaluate", bundle, dataset, "--output", str(output), *options]
    model = content["model"]
    if given.full:
        keys = {"path": "--query-model", "adapter": "--query-adapter", "bos_token": "--query-bos-token"}
        command += [word for key, option in keys.items() if model.get(key) for word in (option, str(model[key]))]
    return command


@program(
    option("recipe", Path, "recipe that gives model, encoding and index"),
    option("--data", Path, "folder of the test collections"),
    option("--work", Path, "folder for bundles and intermediate files"),
    option("--system", str, "what the results are recorded as"),
    option("--full", False, "also encode queries by the whole model"),
    option("--model", None, "in place of the recipe's model.path"),
    option("--results", RESULTS / "quality.json"),
    REST,
)
def main(given: Namespace) -> None:
    """Build and evaluate."""
    for collection in COLLECTIONS:
        measure(given, collection, given.rest)


if __name__ == "__main__":
    sys.exit(main())
