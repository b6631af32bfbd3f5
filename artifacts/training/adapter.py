"""What is trained: a LoRA adapter on a frozen model, or all of its weights; saved with a model card."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from transformers import AutoTokenizer, PreTrainedModel

from lightretriever.artifacts.dtypes import Float32Array
from lightretriever.artifacts.errors import ModelError, RecipeError
from lightretriever.artifacts.files.atomic import new_folder
from lightretriever.artifacts.files.workdir import write_atomically
from lightretriever.artifacts.pipeline.language_model import LIKELIHOOD, Reading
from lightretriever.artifacts.pipeline.model import (
    ADAPTER_CONFIG,
    ADAPTER_SETTINGS,
    GGUF,
    Backbone,
    choose_dtype,
    load_model,
)
from lightretriever.artifacts.tokens.idf import IDF_FILE, save_idf
from lightretriever.artifacts.training.mixture import Progress, Tensors, TrainingSet
from lightretriever.artifacts.training.recipe import ContrastiveStage, LikelihoodStage, LoraRecipe, TrainRecipe

T = TypeVar("T")


class Adapter(torch.nn.Module):
    """LoRA layers inside a backbone or, without `lora`, all of its weights.

    `backbone` shares them, so its forward passes use and train them. They run inside this module's own forward pass, by
    which accelerate knows what several processes train.
    """

    def __init__(self, backbone: Backbone, lora: LoraRecipe | Literal[False], seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        if not lora:
            self.model = backbone.model.requires_grad_(True)
            self.backbone = backbone
            return
        depth = int(backbone.model.config.get_text_config().num_hidden_layers)
        last = None if lora.layers is None else list(range(depth - min(lora.layers, depth), depth))
        try:
            config = LoraConfig(
                r=lora.r,
                lora_alpha=lora.alpha,
                lora_dropout=lora.dropout,
                target_modules=lora.targets,
                layers_to_transform=last,
                task_type="CAUSAL_LM",
            )
            self.peft: PeftModel = get_peft_model(backbone.model, config)
        except ValueError as error:
            raise ModelError(
                f"lora.targets is {lora.targets!r}: {error}",
                remedy="Name linear layers of the model; without lora.layers, all-linear does, too.",
            ) from error
        if isinstance(backbone.model.get_output_embeddings(), BaseTunerLayer):  # `Backbone.head` has its frozen rows
            raise ModelError(
                f"lora.targets is {lora.targets!r}, which names the LM head: its frozen rows make the sparse weights, "
                "so LoRA there would learn nothing.",
                remedy="Leave the LM head out, as all-linear does.",
            )
        self.backbone = replace(backbone, model=cast(PreTrainedModel, self.peft.get_base_model()))

    def forward(self, run: Callable[[], T]) -> T:
        """Run something that passes through `backbone`."""
        return run()

    def trained(self) -> dict[str, torch.nn.Parameter]:
        """The trained weights by name."""
        return {name: parameter for name, parameter in self.named_parameters() if parameter.requires_grad}

    def state(self) -> Tensors:
        """The trained weights, on the CPU."""
        return {name: parameter.detach().cpu() for name, parameter in self.trained().items()}

    @torch.no_grad()
    def load(self, state: Tensors) -> None:
        """Set the trained weights. Raises KeyError where `state` lacks one, RuntimeError for one of another shape."""
        for name, parameter in self.trained().items():
            parameter.copy_(state[name])

    def save(self, folder: Path, recipe: TrainRecipe, state: Tensors, idf: Float32Array, card: str) -> None:
        """Write weights as `state` gave them (LoRA's in bfloat16), IDF and model card to `folder`, which takes the
        place of an adapter that is there when all is written. Raises BundleError."""
        with new_folder(folder, overwrite=True, marker=marker(recipe)) as new:
            if recipe.lora:
                self._write_adapter(new, recipe, state)
            else:  # in float32, with its tokenizer as it was
                whole = {name.removeprefix("model."): tensor.contiguous() for name, tensor in state.items()}
                self.backbone.model.save_pretrained(str(new), state_dict=whole, safe_serialization=True)
                AutoTokenizer.from_pretrained(recipe.model.path, trust_remote_code=False).save_pretrained(str(new))
            save_idf(new / IDF_FILE, idf)
            settings = json.dumps(_settings(recipe), indent=2)
            write_atomically(new / ADAPTER_SETTINGS, settings.encode() + b"\n")
            write_atomically(new / "README.md", card.encode())

    def _write_adapter(self, folder: Path, recipe: TrainRecipe, state: Tensors) -> None:
        lora = {name.removeprefix("peft."): tensor.bfloat16() for name, tensor in state.items() if "lora_" in name}
        # Without the last one, peft looks for the base model on the hub where it was a file.
        self.peft.save_pretrained(str(folder), state_dict=lora, safe_serialization=True, save_embedding_layers=False)
        config = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))
        config["base_model_name_or_path"] = recipe.model.name or self.backbone.name
        config["target_modules"] = sorted(config["target_modules"])  # a set, whose order changes from run to run
        write_atomically(folder / ADAPTER_CONFIG, json.dumps(config, indent=2, sort_keys=True).encode() + b"\n")


def marker(recipe: TrainRecipe) -> str:
    """The file by which a folder is known as one that an earlier run of this kind wrote."""
    return ADAPTER_SETTINGS if not recipe.lora else ADAPTER_CONFIG


def _settings(recipe: TrainRecipe) -> dict[str, Any]:
    """The settings of the training that whoever loads the adapter needs."""
    last = recipe.stages[-1]
    read = next((stage for stage in recipe.stages if isinstance(stage, LikelihoodStage)), None)
    weighted = isinstance(last, ContrastiveStage) and last.flops.idf
    settings = {
        "bos_token": recipe.model.bos_token,
        "centre_head": bool(recipe.model.centre_head),
        "eos_token": recipe.model.eos_token,
        "idf_rows": recipe.idf_rows,
        "lowercase": recipe.lowercase,
        "sparse_positions": "inner",
        "query_weights": "idf_count" if weighted else "count",
    }
    return settings | ({LIKELIHOOD: asdict(Reading(read.before, read.after, read.block))} if read else {})


def load_for_training(recipe: TrainRecipe, device: torch.device, *, layers: int | None = None) -> Adapter:
    """Load the recipe's model onto a device, frozen, with a fresh adapter on it. Raises ModelError and RecipeError.

    Weights that are trained themselves are in float32, whatever the arithmetic. `layers` keeps only the first so many.
    """
    half = choose_dtype(recipe.model.dtype, device) == torch.bfloat16 and bool(recipe.lora)
    model = recipe.model.model_copy(update={"device": str(device), "dtype": "bfloat16" if half else "float32"})
    if model.adapter is not None:
        raise RecipeError(
            f"model.adapter is {model.adapter!r}, but training makes a new adapter.",
            remedy="Leave it out; merge the old adapter into the model first if you want to build on it.",
        )
    if not recipe.lora and model.path.endswith(GGUF):
        raise RecipeError(
            f"lora is false, but model.path is {model.path!r}: transformers writes no model that it read from GGUF.",
            remedy="Give a directory or a Hugging Face id.",
        )
    backbone = load_model(model, lowercase=recipe.lowercase, layers=layers)
    longest = recipe.data.max_document_length
    if backbone.max_positions is not None and longest > backbone.max_positions:
        raise RecipeError(
            f"data.max_document_length is {longest}, but {backbone.name} reads {backbone.max_positions} positions.",
            remedy="Lower it.",
        )
    if recipe.gradient_checkpointing:
        backbone.model.activation_checkpointing_enable({"use_reentrant": False})
    return Adapter(backbone, recipe.lora, recipe.seed)


def model_card(recipe: TrainRecipe, sets: list[TrainingSet], progress: Progress) -> str:
    """README.md of the adapter's folder: how to use it, what it was trained on and how long, and its licences."""
    model, dev = recipe.model.name or Path(recipe.model.path).name, recipe.dev
    licences = {dataset.name: dataset.licence or "not stated" for dataset in recipe.data.sets}
    read = [(made.name, len(made.examples), made.weight, licences[made.name]) for made in sets]
    rows = "\n".join(f"| {name} | {count:,} | {weight:g} | {licence} |" for name, count, weight, licence in read)
    stages = ", then ".join(f"{stage.steps:,} steps of {stage.batch_size} ({stage.kind})" for stage in recipe.stages)
    best = "the weights are those of the last step"
    if dev is not None and progress.best is not None:
        steps = sum(stage.steps for stage in recipe.stages)
        best = f"nDCG@10 on {dev.path.name} was best after step {progress.best_step} of {steps:,}: {progress.best:.3f}"
    made = f"A LoRA adapter that makes {model}" if recipe.lora else f"{model}, trained whole to be"
    key = "model.adapter" if recipe.lora else "model.path"
    return f"""---
base_model: {model}
library_name: {"peft" if recipe.lora else "transformers"}
license: {recipe.licence or "other"}
tags: [retrieval, lightretriever]
---
# {recipe.name}

{made} a LightRetriever: the model reads documents, and a table of token vectors and token
counts stand for queries. Use it as `{key}` in a recipe of `lightretriever build`.

| set | pairs | weight | licence |
|---|---:|---:|---|
{rows}

Trained in {progress.elapsed_s / 60:.0f} minutes: {stages}; {best}.
Base model: {recipe.model.licence or "licence not stated"}.
"""
