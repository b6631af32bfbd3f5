"""Train the variants of a training recipe and evaluate each on the test collections: what every part is worth.

    python -m research.quality.ablations RECIPE --model MODEL --data DIR --work runs/ablations

RECIPE is a training recipe. Each variant changes one thing in it (`VARIANTS`), or what reads queries (`READERS`), and
is trained from the same seed on the same data. A variant that changes nothing in this recipe, such as `no-kl` where
there is no KL, is left out. All are ranked by brute force over all documents, with the weights of the last step; where
the recipe has a development set, over what it draws of that alone.

    light-documents      the paper's A1: the trained table reads documents, too; the dense leg alone
    query-mlp            A2: an MLP over the model's embedding layer reads the tokens of queries
    query-first-layer    A3: the model's first layer reads whole queries

    WORK/VARIANT/train/         its run, with the log
    WORK/VARIANT/scores.json    nDCG@10 by collection and leg; written last

Stopped and started again, it goes on where it was; training goes on from its checkpoint. At the end, a table has the
mean nDCG@10 of each leg and of both (A4), and the terms of a document at the end of training: `flops-tenth` and
`flops-tenfold` are a sweep of λ. With `--seeds`, WORK/seed-N has the runs of a seed; the table has means over
all.
"""

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from lightretriever.artifacts.files.workdir import read_json, write_atomically
from lightretriever.artifacts.pipeline.language_model import instruction_prefix
from lightretriever.artifacts.pipeline.model import Backbone
from lightretriever.artifacts.pipeline.recipe import read_recipe
from lightretriever.artifacts.pipeline.states import packed_states
from lightretriever.artifacts.reports import aligned
from lightretriever.artifacts.training.adapter import load_for_training
from lightretriever.artifacts.training.dev import DevSet, evaluate_dev, measured
from lightretriever.artifacts.training.engine import Engine
from lightretriever.artifacts.training.loop import run_stages
from lightretriever.artifacts.training.losses import cosine_scores
from lightretriever.artifacts.training.objectives import ROW_TOKENS, QuerySide, read_tokens, token_means
from lightretriever.artifacts.training.recipe import ContrastiveStage, DevRecipe, TrainRecipe
from lightretriever.artifacts.training.run import Run
from lightretriever.loadtest.program import option, program
from lightretriever.service.commands.evaluation import open_searcher
from research.quality.evaluate import COLLECTIONS

Content = dict[str, Any]
LIGHT_DOCUMENTS = "light-documents"
ALL = 10**9  # of a collection's queries and documents


class Mlp(torch.nn.Module):
    """Query vectors mean_i MLP(embedding of t_i)."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        size = run.adapter.backbone.hidden_size
        layers = [torch.nn.Linear(size, size), torch.nn.GELU(), torch.nn.Linear(size, size)]
        self.layers = torch.nn.Sequential(*layers).to(run.adapter.backbone.device)

    def forward(
        self, backbone: Backbone, _: list[int], queries: Sequence[torch.Tensor], rows: torch.Tensor | None
    ) -> torch.Tensor:
        """A `QueryReader`."""
        embedding = backbone.model.get_input_embeddings()
        return token_means(queries, lambda tokens: self.layers(embedding(tokens.to(backbone.device)).float()), rows)


class FirstLayer(torch.nn.Module):
    """Query vectors by the model's first layer alone, with an adapter of its own. Tokens see each other."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.adapter = load_for_training(run.recipe, run.engine.device, layers=1)

    def forward(
        self, _: Backbone, prefix: list[int], queries: Sequence[torch.Tensor], rows: torch.Tensor | None
    ) -> torch.Tensor:
        """A `QueryReader`."""
        backbone = self.adapter.backbone
        whole = [[*prefix, *query.tolist(), backbone.eos_id] for query in queries]
        return packed_states(backbone, whole, ROW_TOKENS).dense(backbone, len(prefix)).float()


READERS: dict[str, type[Mlp | FirstLayer]] = {"query-mlp": Mlp, "query-first-layer": FirstLayer}


class VariantRun(Run):
    """A run in which a module of READERS reads dense queries, trained with the adapter."""

    def __init__(self, recipe: TrainRecipe, engine: Engine, variant: str) -> None:
        super().__init__(recipe, engine)
        self._reader = None
        if variant in READERS:
            self._reader = self.adapter.reader = READERS[variant](self)
            self.resume(None)  # now with the reader's weights

    def query_side(self, stage: ContrastiveStage) -> QuerySide:
        """How a stage scores queries."""
        side = super().query_side(stage)
        return side if self._reader is None else replace(side, read=self._reader)


def _in_stages(change: Callable[[Content], object]) -> Callable[[Content], object]:
    """A change of every contrastive stage."""
    return lambda recipe: [change(stage) for stage in recipe["stages"] if stage["kind"] == "contrastive"]


def _no_teachers(stage: Content) -> None:
    if stage["distillation"]:
        stage.update(distillation=None, contrastive=1.0)


VARIANTS: dict[str, Callable[[Content], object]] = {
    "no-kl": _in_stages(lambda stage: stage.update(full_kl=0.0)),
    "no-idf": _in_stages(lambda stage: stage["flops"].update(idf=False)),
    "no-idf-rows": lambda recipe: recipe.update(idf_rows=False),
    "no-matryoshka": _in_stages(lambda stage: stage.update(matryoshka=[])),
    "no-distillation": _in_stages(_no_teachers),
    "no-filter": lambda recipe: (recipe["data"]["negatives"] or {}).update(top=None),
    "no-likelihood": lambda recipe: recipe.update(
        stages=[stage for stage in recipe["stages"] if stage["kind"] != "query_likelihood"]
    ),
    "flops-tenth": _in_stages(lambda stage: stage["flops"].update(weight=stage["flops"]["weight"] / 10)),
    "flops-tenfold": _in_stages(lambda stage: stage["flops"].update(weight=stage["flops"]["weight"] * 10)),
}


def variant_of(recipe: TrainRecipe, name: str) -> TrainRecipe:
    """The recipe with one thing changed, where it has that."""
    content = recipe.model_dump()
    VARIANTS[name](content)
    return TrainRecipe.model_validate(content)


def measure(work: Path, name: str, recipe: TrainRecipe, collections: Mapping[str, DevRecipe]) -> None:
    """Train one variant and evaluate it. Raises LightRetrieverError."""
    folder = work / name
    places = {"work": folder / "train", "output": folder / "adapter", "dev": None}
    recipe = recipe.model_copy(update=places)
    run = VariantRun(recipe, Engine.of(recipe), name)
    run_stages(run, open_searcher=open_searcher)
    stage = [stage for stage in recipe.stages if isinstance(stage, ContrastiveStage)][-1]
    ranked = {name: evaluate_dev} | ({LIGHT_DOCUMENTS: evaluate_light_documents} if name == "base" else {})
    found: dict[str, dict[str, Any]] = {variant: {"scores": {}} for variant in ranked}
    for collection, judged in collections.items():
        dev, length, side = DevSet.load(judged, seed=0), recipe.data.max_document_length, run.query_side(stage)
        for variant, evaluate in ranked.items():
            scores = run.engine.evaluate(partial(evaluate, run.adapter.backbone, dev, length, side))
            found[variant]["scores"][collection] = scores
    log = [json.loads(line) for line in (folder / "train" / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    found[name]["terms"] = [entry["terms"] for entry in log if "terms" in entry][-1]
    for variant, content in found.items():
        (work / variant).mkdir(exist_ok=True)
        write_atomically(work / variant / "scores.json", json.dumps(content, indent=1).encode() + b"\n")


def judged(recipe: TrainRecipe, data: Path) -> dict[str, DevRecipe]:
    """The recipe's development set by its name, or all queries and documents of the test collections."""
    if recipe.dev is not None:
        return {f"{recipe.dev.path.name}-{recipe.dev.split}": recipe.dev}
    return {
        one.name: DevRecipe(
            path=data / one.folder, split=one.split, instruction=one.instruction, queries=ALL, documents=ALL
        )
        for one in COLLECTIONS
        if not one.part
    }


def evaluate_light_documents(backbone: Backbone, dev: DevSet, max_length: int, side: QuerySide) -> dict[str, float]:
    """nDCG@10 where documents are means of table rows, too. Run it by `Engine.evaluate`."""
    prefix = instruction_prefix(backbone, dev.instruction)
    texts = [document.full_text for document in dev.documents]
    queries, documents = (
        read_tokens(backbone, prefix, [torch.from_numpy(ids[:max_length]).long() for ids in found], side.rows)
        for found in (backbone.tokenizer.as_queries(dev.queries.values()), backbone.tokenizer.encode_batch(texts))
    )
    with torch.autocast(backbone.device.type, enabled=False):  # NumPy has no bfloat16
        return measured(dev, {"dense": cosine_scores(queries, documents).cpu().numpy()})


@program(
    option("recipe", Path, "training recipe that the variants change"),
    option("--model", str, "in place of the recipe's model.path"),
    option("--data", Path, "folder of the training sets and test collections"),
    option("--work", Path, "folder for runs and scores"),
    option("--only", None, "these variants alone", nargs="+", choices=["base", *VARIANTS, *READERS]),
    option("--seeds", None, "in place of the recipe's seed", nargs="+", type=int),
    option("--device", "auto", "cpu, cuda, …"),
)
def main(given: Namespace) -> None:
    """Train and evaluate."""
    replaced = {"model.path": given.model, "model.device": given.device}
    recipe = read_recipe(given.recipe, TrainRecipe, replaced, given.data)
    collections = judged(recipe, given.data)
    variants = {"base": recipe, **{name: variant_of(recipe, name) for name in VARIANTS}}
    variants |= dict.fromkeys(READERS, recipe)
    works = {given.work / f"seed-{seed}": seed for seed in given.seeds or []} or {given.work: recipe.seed}
    for (work, seed), (name, variant) in product(works.items(), variants.items()):
        if name not in (given.only or variants) or (work / name / "scores.json").is_file():
            continue
        if name in VARIANTS and variant == recipe:
            print(f"{name}: nothing to change in {given.recipe.name}", file=sys.stderr)
            continue
        measure(work, name, variant.model_copy(update={"seed": seed}), collections)
    print("\n".join(aligned(table(list(works)))))


def table(works: Sequence[Path]) -> list[list[str]]:
    """Rows of cells: mean nDCG@10 over collections and seeds, by variant and leg, and the terms of a document."""
    legs = ["dense", "sparse", "hybrid"]
    rows = [["mean nDCG@10", *legs, "terms"]]
    for name in ("base", LIGHT_DOCUMENTS, *READERS, *VARIANTS):
        runs = [read_json(file) for work in works if (file := work / name / "scores.json").is_file()]
        scores = [one for content in runs for one in content["scores"].values()]
        values = {leg: [one[leg] for one in scores if leg in one] for leg in legs}
        terms = [content["terms"] for content in runs if "terms" in content]
        if runs:
            cells = (f"{mean(found):.4f}" if found else "" for found in values.values())
            rows.append([name, *cells, f"{mean(terms):,.0f}" if terms else ""])
    return rows


if __name__ == "__main__":
    sys.exit(main())
