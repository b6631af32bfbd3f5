"""The command `encode`: encodes the corpus in shards, all of it or a part."""

import typer
from lightretriever.artifacts.cli.options import (
    AdapterOption,
    CorpusOption,
    DeviceOption,
    LimitOption,
    ModelOption,
    PartOption,
    RayOption,
    RecipeArgument,
    SkipOption,
    WorkOption,
    recipe_of,
)
from lightretriever.artifacts.cli.runner import JsonOption, next_command, report_skipped, running
from lightretriever.artifacts.cli.stages import ray_encoding, torch_stages
from lightretriever.artifacts.cli.summaries import encode_summary, next_stage
from lightretriever.artifacts.errors import RecipeError
from lightretriever.artifacts.files.shards import Part
from lightretriever.artifacts.files.workdir import work_lock
from lightretriever.artifacts.pipeline.recipe import Recipe

__all__ = ["encode"]


def encode(
    context: typer.Context,
    recipe: RecipeArgument,
    corpus: CorpusOption = None,
    model: ModelOption = None,
    adapter: AdapterOption = None,
    device: DeviceOption = None,
    work: WorkOption = None,
    limit: LimitOption = None,
    part: PartOption = None,
    ray: RayOption = None,
    skip_bad: SkipOption = False,
    as_json: JsonOption = False,
) -> None:
    """Encode the corpus with the full LLM, in shards: texts that were encoded before are kept."""
    with running("encode", as_json=as_json) as job:
        loaded, own = recipe_of(context), None if part is None else Part.parse(part)
        _check_shared(loaded, part, ray)
        if ray is not None:
            encoding = ray_encoding(loaded, ray)
        else:
            stages = torch_stages()
            with work_lock(loaded.work, shared=own is not None):
                encoding = stages.run_encode(loaded, stages.load_recipe_encoders(loaded), own)
        job.summary = encode_summary(encoding)
        report_skipped(encoding.skipped, cut=job.summary.cut)
        missing = encoding.store.missing_parts()
        if missing:
            context.params["part"] = missing[0]
        job.summary.next = next_command(context, "encode" if missing else next_stage(loaded), recipe)


def _check_shared(recipe: Recipe, part: str | None, ray: str | None) -> None:
    """Raise RecipeError for what several processes can't do."""
    if part is not None and ray is not None:
        raise RecipeError(f"--part is {part} and --ray is {ray!r}.", remedy="Give one: Ray makes parts of its own.")
    shared = f"--part is {part}" if ray is None else f"--ray is {ray!r}"
    model, converted = recipe.model.path, recipe.work / "model" / "converted.json"
    if (part or ray) is not None and model.endswith(".gguf") and not converted.is_file():
        raise RecipeError(
            f"{shared}, but {model} is not converted yet, which one process has to do.", remedy="Run `table` first."
        )
