"""Train the variants of a training recipe and evaluate each on the test collections: what every part is worth.

    python -m research.quality.ablations RECIPE --model MODEL --data DIR --work runs/ablations --system NAME

RECIPE is a training recipe. Each variant changes one thing in it (`VARIANTS`), is trained from the same seed on the
same data, and recorded as NAME-VARIANT; the recipe itself is NAME. A variant that changes nothing in this recipe, such
as `no-kl` where there is no KL, is left out.

    WORK/VARIANT/train.yaml     the recipe of the variant
    WORK/VARIANT/train/         its run, with the log
    WORK/VARIANT/adapter/       its adapter
    WORK/VARIANT/quality/       its bundles and evaluations, see research/quality/evaluate.py

Stopped and started again, it goes on where it was; training goes on from its checkpoint. At the end, a table has the
mean nDCG@10 of each leg and of both (the paper's A4), and the postings of a query: `flops-tenth` and `flops-tenfold`
are its sweep of λ. The paper's A1 to A3 are other architectures, which no bundle serves; they are not here.
"""

import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from lightretriever.artifacts.evaluation.evaluate import REPORT_FILE
from lightretriever.artifacts.files.workdir import read_json
from lightretriever.loadtest.connection import LoadError
from lightretriever.loadtest.process import python
from lightretriever.loadtest.program import REST, option, program
from research.quality import evaluate
from research.quality.recorded import RESULTS
from research.record import ROOT

__all__ = ["VARIANTS", "main", "table", "variant_of"]

Content = dict[str, Any]


def _stages(change: Callable[[Content], Content]) -> Callable[[Content], Content]:
    """A change of every stage."""
    return lambda recipe: {**recipe, "stages": [change(stage) for stage in recipe["stages"]]}


def _contrastive(**values: object) -> Callable[[Content], Content]:
    return _stages(lambda stage: {**stage, **values} if stage["kind"] == "contrastive" else stage)


def _plain_flops(stage: Content) -> Content:
    return {**stage, "flops": {**(stage.get("flops") or {}), "idf": False}} if stage["kind"] == "contrastive" else stage


def _flops(factor: float) -> Callable[[Content], Content]:
    def change(stage: Content) -> Content:
        flops = {"weight": 1e-3, **(stage.get("flops") or {})}
        return {**stage, "flops": {**flops, "weight": flops["weight"] * factor}}

    return _stages(lambda stage: change(stage) if stage["kind"] == "contrastive" else stage)


def _no_teachers(stage: Content) -> Content:
    """The contrastive loss alone, in place of distillation."""
    if not stage.get("distillation"):
        return stage
    return {**{name: value for name, value in stage.items() if name != "distillation"}, "contrastive": 1.0}


def _no_filter(recipe: Content) -> Content:
    negatives = (recipe.get("data") or {}).get("negatives")
    if not negatives or negatives.get("top") is None:
        return recipe
    kept = {name: value for name, value in negatives.items() if name != "top"}
    return {**recipe, "data": {**recipe["data"], "negatives": kept}}


def _no_likelihood(recipe: Content) -> Content:
    return {**recipe, "stages": [stage for stage in recipe["stages"] if stage["kind"] != "query_likelihood"]}


def _without(key: str) -> Callable[[Content], Content]:
    return _stages(lambda stage: {name: value for name, value in stage.items() if name != key})


VARIANTS: dict[str, Callable[[Content], Content]] = {
    "no-kl": _contrastive(full_kl=0.0),
    "no-idf": _stages(_plain_flops),
    "no-idf-rows": lambda recipe: {**recipe, "idf_rows": False},
    "no-matryoshka": _without("matryoshka"),
    "no-distillation": _stages(_no_teachers),
    "no-filter": _no_filter,
    "no-likelihood": _no_likelihood,
    "flops-tenth": _flops(0.1),
    "flops-tenfold": _flops(10.0),
}


def variant_of(recipe: Content, name: str) -> Content | None:
    """The recipe with one thing changed; None where that is how it is already."""
    defaults = {"idf_rows": False}
    changed = {**defaults, **VARIANTS[name](recipe)}
    return None if changed == {**defaults, **recipe} else changed


def measure(given: Namespace, name: str, content: Content) -> None:
    """Train one variant and evaluate it. Raises LoadError if a step fails."""
    folder = given.work / name
    adapter = folder / "adapter"
    device = ["--device", given.device] if given.device else []
    if not (adapter / "README.md").is_file():  # written last
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "train.yaml"
        file.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), encoding="utf-8")
        places = ["--work", str(folder / "train"), "--output", str(adapter)]
        command = ["train", str(file), "--model", given.model, "--data", str(given.data), *places, *device]
        # In a process of its own, which may start others for more GPUs.
        if subprocess.run(python("lightretriever.service.cli", *command), check=False).returncode:
            raise LoadError(f"{name} was not trained.")
    system = given.system if name == "base" else f"{given.system}-{name}"
    words = ["--data", str(given.data), "--work", str(folder / "quality"), "--results", str(given.results)]
    words += ["--model", given.model, "--adapter", str(adapter), "--system", system, *device]
    words += ["--no-refine", "--idf", "auto"]  # what the training brought, and not what the corpus adds
    if given.datasets:
        words += ["--datasets", *given.datasets]
    if given.max_length:
        words += ["--max-length", str(given.max_length)]
    if evaluate.main([str(given.bundle_recipe), *words, *(["--", *given.rest] if given.rest else [])]):
        raise LoadError(f"{name} was not evaluated.")


@program(
    option("recipe", Path, "training recipe that the variants change"),
    option("--model", str, "in place of the recipe's model.path"),
    option("--data", Path, "folder of the training sets and test collections"),
    option("--work", Path, "folder for runs, adapters and bundles"),
    option("--system", str, "what the recipe itself is recorded as"),
    option("--only", None, "these variants alone", nargs="+", choices=["base", *VARIANTS]),
    option("--bundle-recipe", ROOT / "recipes" / "scifact-lightretriever.yaml", "model, encoding and index"),
    option("--datasets", None, "these test collections alone", nargs="+"),
    option("--max-length", None, "in place of the recipe's encode.max_length", type=int),
    option("--results", RESULTS / "quality.json"),
    option("--device", None, "cpu, cuda, …"),
    REST,
)
def main(given: Namespace) -> None:
    """Train and evaluate."""
    recipe: Content = yaml.safe_load(given.recipe.read_text(encoding="utf-8"))
    contents = {"base": recipe} | {name: variant_of(recipe, name) for name in VARIANTS}
    for name, content in contents.items():
        if name not in (given.only or contents):
            continue
        if content is None:
            print(f"{name}: nothing to change in {given.recipe.name}", file=sys.stderr)
            continue
        measure(given, name, content)
    Console().print(table(given.work))


def table(work: Path) -> Table:
    """Mean nDCG@10 over the collections, by variant and leg, and a query's postings in the sparse leg."""
    legs = ["dense", "sparse", "hybrid"]
    made = Table("variant", *legs, "postings", title="mean nDCG@10")
    for name in ("base", *VARIANTS):
        reports = [read_json(file) for file in sorted((work / name / "quality").rglob(REPORT_FILE))]
        values = [[one["metrics"][leg]["nDCG@10"] for one in reports if leg in one["metrics"]] for leg in legs]
        postings = [one["postings_per_query"]["sparse"] for one in reports if "sparse" in one["postings_per_query"]]
        if reports:
            cells = [f"{mean(own):.4f}" if own else "" for own in values]
            made.add_row(name, *cells, f"{mean(postings):,.0f}" if postings else "")
    return made


if __name__ == "__main__":
    sys.exit(main())
