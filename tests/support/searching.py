"""Evaluation and training with the engine that serves, as the command line puts them together."""

from functools import partial

from lightretriever.artifacts.evaluation import evaluate
from lightretriever.service.commands.evaluation import open_searcher

evaluate_bundle = partial(evaluate.evaluate_bundle, open_searcher)
