"""The model card of a trained adapter: what it is, what it was trained on, under which licences."""

from pathlib import Path

from lightretriever.artifacts.training.checkpoint import Progress
from lightretriever.artifacts.training.recipe import TrainRecipe
from lightretriever.artifacts.training.types import TrainingSet

__all__ = ["model_card"]


def model_card(recipe: TrainRecipe, sets: list[TrainingSet], progress: Progress) -> str:
    """README.md of the adapter's folder."""
    model = recipe.model.name or Path(recipe.model.path).name
    return f"""---
base_model: {model}
library_name: peft
license: {recipe.licence or "other"}
tags: [retrieval, lightretriever]
---
# {recipe.name}

A LoRA adapter that makes {model} a LightRetriever: documents are read by the whole model, queries by a table of token
vectors and their token counts. Use it as `model.adapter` in a recipe of `lightretriever build`; text is
{"lowercased" if recipe.lowercase else "not lowercased"} on both sides.

## Training data
| set | pairs | weight | licence | instruction |
|---|---:|---:|---|---|
{_rows(recipe, sets)}

## Stages
{_stages(recipe)}
{_best(recipe, progress)}
Trained in {progress.elapsed_s / 60:.0f} minutes. Licence of the base model: {recipe.model.licence or "not stated"}.
"""


def _rows(recipe: TrainRecipe, sets: list[TrainingSet]) -> str:
    licences = {one.name: one.licence or "not stated" for one in recipe.data.sets}
    return "\n".join(
        f"| {one.name} | {len(one.examples):,} | {one.weight:g} | {licences[one.name]} | {one.instruction} |"
        for one in sets
    )


def _stages(recipe: TrainRecipe) -> str:
    return "\n".join(
        f"- {stage.kind}: {stage.steps:,} steps of {stage.batch_size} queries, learning rate {stage.learning_rate:g}"
        for stage in recipe.stages
    )


def _best(recipe: TrainRecipe, progress: Progress) -> str:
    if progress.best is None or recipe.dev is None:
        return ""
    return (
        f"\nThe weights are those of step {progress.best_step}, the best on the development set: nDCG@10 of hybrid "
        f"search {progress.best:.3f} on a sample of {recipe.dev.path.name}, split {recipe.dev.split}.\n"
    )
