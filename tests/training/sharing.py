"""Of torchrun's processes: share out the models of recipes, and write what each process held and what it has now.

FOLDER/NAME.yaml            a recipe of a training
FOLDER/NAME-RANK.json       how many bytes this process' memory grew at most
FOLDER/NAME.safetensors     the weights of all processes together
"""

import json
import resource
import sys
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from lightretriever.artifacts.pipeline.recipe import read_recipe
from lightretriever.artifacts.training.engine import Engine
from lightretriever.artifacts.training.recipe import TrainRecipe
from lightretriever.artifacts.training.run import Run


def peak() -> int:
    """The most bytes that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


folder, engine = Path(sys.argv[1]), Engine("cpu")
for file in sorted(folder.glob("*.yaml")):
    recipe = read_recipe(file, TrainRecipe)
    before = peak()
    run = Run(recipe, engine)
    grown = {"grown": peak() - before}
    (folder / f"{file.stem}-{engine.accelerator.process_index}.json").write_text(json.dumps(grown))
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = dict[str, Any](get_model_state_dict(run.adapter, options=options))
    if engine.accelerator.is_main_process:
        save_file({name: tensor.clone() for name, tensor in state.items()}, folder / f"{file.stem}.safetensors")
engine.accelerator.end_training()
