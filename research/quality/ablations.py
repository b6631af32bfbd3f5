"""Train the variants of a training recipe and evaluate each on the test collections: what every part is worth.

    python -m research.quality.ablations RECIPE --model MODEL --data DIR --work runs/ablations --system NAME

RECIPE is a training recipe. Each variant changes one thing in it (`VARIANTS`), is trained from the same seed on the
same data, and recorded as NAME-VARIANT; the recipe itself is NAME. A variant that changes nothing in this recipe, such
as `no-kl` where there is no KL, is left out.

    WORK/VARIANT/train.yaml     the recipe of the variant
    WORK/VARIANT/train/         its run, with the log
    WORK/VARIANT/adapter/       its adapter
    WORK/VARIANT/quality/       its bundles and evaluations, see research/quality/evaluate.py

Stopped and started again, it goes on where it was; training goes on from its checkpoint.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from research.quality import evaluate

__all__ = ["VARIANTS", "main", "variant_of"]

BUNDLE_RECIPE = evaluate.ROOT / "recipes" / "scifact-lightretriever.yaml"
Content = dict[str, Any]


def _stages(change: Callable[[Content], Content]) -> Callable[[Content], Content]:
    """A change of every stage."""
    return lambda recipe: {**recipe, "stages": [change(stage) for stage in recipe["stages"]]}


def _contrastive(**values: object) -> Callable[[Content], Content]:
    return _stages(lambda stage: {**stage, **values} if stage["kind"] == "contrastive" else stage)


def _plain_flops(stage: Content) -> Content:
    return {**stage, "flops": {**(stage.get("flops") or {}), "idf": False}} if stage["kind"] == "contrastive" else stage


def _without(key: str) -> Callable[[Content], Content]:
    return _stages(lambda stage: {name: value for name, value in stage.items() if name != key})


VARIANTS: dict[str, Callable[[Content], Content]] = {
    "no-kl": _contrastive(full_kl=0.0),
    "no-idf": _stages(_plain_flops),
    "no-idf-rows": lambda recipe: {**recipe, "idf_rows": False},
    "no-matryoshka": _without("matryoshka"),
}


def variant_of(recipe: Content, name: str) -> Content | None:
    """The recipe with one thing changed; None where that is how it is already."""
    defaults = {"idf_rows": False}
    changed = {**defaults, **VARIANTS[name](recipe)}
    return None if changed == {**defaults, **recipe} else changed


def main(arguments: Sequence[str] | None = None) -> int:
    """Train and evaluate; returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    split = words.index("--") if "--" in words else len(words)
    given = _parser().parse_args(words[:split])
    recipe: Content = yaml.safe_load(given.recipe.read_text(encoding="utf-8"))
    contents = {"base": recipe} | {name: variant_of(recipe, name) for name in VARIANTS}
    for name, content in contents.items():
        if name not in (given.only or contents):
            continue
        if content is None:
            print(f"{name}: nothing to change in {given.recipe.name}", file=sys.stderr)
            continue
        status = measure(given, name, content, words[split:])
        if status:
            return status
    return 0


def measure(given: argparse.Namespace, name: str, content: Content, options: Sequence[str]) -> int:
    """Train one variant and evaluate it; returns the exit status."""
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
        status = subprocess.run([sys.executable, "-m", "lightretriever.service.cli", *command], check=False).returncode
        if status:
            return status
    system = given.system if name == "base" else f"{given.system}-{name}"
    words = ["--data", str(given.data), "--work", str(folder / "quality"), "--results", str(given.results)]
    words += ["--model", given.model, "--adapter", str(adapter), "--system", system, *device]
    words += ["--no-refine", "--idf", "auto"]  # what the training brought, and not what the corpus adds
    if given.datasets:
        words += ["--datasets", *given.datasets]
    if given.max_length:
        words += ["--max-length", str(given.max_length)]
    return evaluate.main([str(given.bundle_recipe), *words, *options])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Train the variants of a training recipe and evaluate each on the test collections.",
        epilog="What stands after -- is handed to `lightretriever evaluate`.",
    )
    parser.add_argument("recipe", type=Path, help="training recipe that the variants change")
    parser.add_argument("--model", required=True, help="in place of the recipe's model.path")
    parser.add_argument("--data", type=Path, required=True, help="folder of the training sets and test collections")
    parser.add_argument("--work", type=Path, required=True, help="folder for runs, adapters and bundles")
    parser.add_argument("--system", required=True, help="what the recipe itself is recorded as")
    parser.add_argument("--only", nargs="+", choices=["base", *VARIANTS], help="these variants alone")
    parser.add_argument("--bundle-recipe", type=Path, default=BUNDLE_RECIPE, help="model, encoding and index")
    parser.add_argument("--datasets", nargs="+", help="these test collections alone")
    parser.add_argument("--max-length", type=int, help="in place of the recipe's encode.max_length")
    parser.add_argument("--results", type=Path, default=evaluate.ROOT / "docs" / "results" / "quality.json")
    parser.add_argument("--device", help="cpu, cuda, …")
    return parser


if __name__ == "__main__":
    sys.exit(main())
