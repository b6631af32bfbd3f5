"""Self-mined negatives: documents that the model itself puts high, with the weights that a stage begins with.

WORK/data/NAME/mined-STAGE.json    the set's examples with these negatives
"""

from dataclasses import replace
from functools import partial

import torch

from lightretriever.artifacts.pipeline.model import Backbone
from lightretriever.artifacts.training.contrastive import QuerySide, corpus_scores
from lightretriever.artifacts.training.data import read_examples, relevant_of, write_examples
from lightretriever.artifacts.training.negatives import Hits, chosen
from lightretriever.artifacts.training.recipe import ContrastiveStage, DataRecipe
from lightretriever.artifacts.training.run import Run
from lightretriever.artifacts.training.types import TrainingSet


def sets_of_stage(run: Run) -> list[TrainingSet]:
    """The sets as the current stage trains on them: with the negatives of the last stage that mined, if any did.

    The files are made before the first step of the stage that mines, so that a run that goes on finds them.
    """
    stages = list(enumerate(run.recipe.stages[: run.progress.stage + 1]))
    mining = [(number, stage) for number, stage in stages if isinstance(stage, ContrastiveStage) and stage.mine]
    settings = run.recipe.data.negatives
    if not mining or settings is None:
        return run.sets
    number, stage = mining[-1]
    side, backbone, made = run.query_side(stage), run.adapter.backbone, []
    for recipe, dataset in zip(run.recipe.data.sets, run.sets, strict=True):
        file = run.recipe.work / "data" / dataset.name / f"mined-{number}.json"
        run.accelerator.wait_for_everyone()
        if not file.is_file():
            hits = run.engine.evaluate(partial(ranked, backbone, dataset, stage, run.recipe.data, side))
            kept = chosen(dataset.examples, hits, dataset.documents, relevant_of(recipe, dataset.documents), settings)
            run.accelerator.wait_for_everyone()
            if run.accelerator.is_main_process:
                write_examples(file, kept)
            run.accelerator.wait_for_everyone()
        made.append(replace(dataset, examples=read_examples(file)))
    return made


def ranked(
    backbone: Backbone, dataset: TrainingSet, stage: ContrastiveStage, data: DataRecipe, side: QuerySide
) -> dict[str, Hits]:
    """The best `depth` documents of a set for each query of its examples, by the leg that the stage mines with.

    Run it by `Engine.evaluate`, without gradients. Queries have the set's first instruction.
    """
    names = list(dataset.documents)
    queries = list(dict.fromkeys(example.query for example in dataset.examples))
    depth = data.negatives.depth if data.negatives else 1
    texts, length = dataset.documents.values(), data.max_document_length
    best, places = torch.empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.long)
    start = 0
    for part in corpus_scores(backbone, dataset.instructions[0], queries, texts, length, side):
        scores = part[stage.mine or "sparse"].cpu()
        numbers = torch.arange(start, start + scores.shape[1]).expand(len(queries), -1)
        start += scores.shape[1]
        scores, numbers = torch.cat([best, scores], dim=1), torch.cat([places, numbers], dim=1)
        best, order = scores.topk(min(depth, scores.shape[1]), dim=1)
        places = numbers.gather(1, order)
    rows = zip(queries, places.tolist(), best.tolist(), strict=True)
    return {query: [(names[n], score) for n, score in zip(own, scores, strict=True)] for query, own, scores in rows}
