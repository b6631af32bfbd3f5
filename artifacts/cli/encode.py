"""The command `encode`: what the models make of the corpus, on one machine, on several or on a Ray cluster."""

from typing import TYPE_CHECKING, Annotated

import typer

from lightretriever.artifacts.cli.options import RecipeArgument, overridden, replacing
from lightretriever.artifacts.cli.runner import JsonOption, next_command, report_skipped, running
from lightretriever.artifacts.cli.stages import next_stage, torch_stages
from lightretriever.artifacts.errors import RecipeError, importing
from lightretriever.artifacts.files.workdir import work_lock
from lightretriever.artifacts.pipeline.encoded import Part, TextStore, encoded_corpus
from lightretriever.artifacts.pipeline.recipe import Recipe

if TYPE_CHECKING:
    from lightretriever.artifacts.pipeline.encode import EncodeSummary

__all__ = ["encode"]


@replacing("corpus", "model", "adapter", "device", "work", "limit", "part", "ray", "skip_bad")
def encode(
    context: typer.Context,
    recipe: RecipeArgument,
    part: Annotated[
        str | None,
        typer.Option("--part", metavar="I/N", help="Only every N-th shard from the I-th on, for N machines."),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option("--ray", metavar="ADDRESS", help="Encode on a Ray cluster: auto, HOST:PORT or ray://HOST:PORT."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Encode the corpus with the model; encoded texts of an earlier run are kept."""
    with running("encode", as_json=as_json) as job:
        loaded, own = overridden(context, Recipe), None if part is None else Part.parse(part)
        if part is not None and ray is not None:
            raise RecipeError(f"--part is {part} and --ray is {ray!r}.", remedy="Give one: Ray makes parts of its own.")
        if ray is not None:
            summary = _encode_on_ray(loaded, ray)
        else:
            stages = torch_stages()
            with work_lock(loaded.work, shared=own is not None):
                summary = stages.run_encode(loaded, stages.load_recipe_encoders(loaded), own)
        with work_lock(loaded.work, shared=True):
            report_skipped(encoded_corpus(loaded, shared=True).skipped, cut=summary.cut)
            missing = TextStore(loaded.work / "encode").missing_parts()
        if missing:
            context.params["part"] = missing[0]
        summary.next = next_command(context, "encode" if missing else next_stage(loaded), recipe)
        job.summary = summary


def _encode_on_ray(recipe: Recipe, address: str) -> "EncodeSummary":
    """Encode the corpus on the Ray cluster at an address. MissingExtraError where Ray is not installed."""
    torch_stages()
    with importing("ray"):
        from lightretriever.artifacts.pipeline.on_ray import encode_on_ray
    return encode_on_ray(recipe, address)
