"""The command line in a process of torchrun, of which the one with a number runs out of memory in its second step.

python -m tests.training.small_memory NUMBER ERROR ARGUMENTS
"""

import os
import sys

import torch

from lightretriever.artifacts.pipeline.model import Backbone
from lightretriever.artifacts.training import objectives
from lightretriever.artifacts.training.mixture import Tensors
from lightretriever.service.cli import main

number, error, *arguments = sys.argv[1:]
plain, passes = objectives.document_outputs, 0


def outputs(backbone: Backbone, sequences: list[list[int]]) -> Tensors:
    """The documents' representations, as long as there is memory."""
    global passes
    passes += 1
    if os.environ["RANK"] == number and passes > 1:
        raise {"OutOfMemoryError": torch.OutOfMemoryError, "MemoryError": MemoryError}[error]("Tried to allocate 2 GiB")
    return plain(backbone, sequences)


objectives.document_outputs = outputs
sys.argv = ["lightretriever", *arguments]
main()
