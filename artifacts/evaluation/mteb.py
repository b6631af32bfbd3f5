"""Bundles as a model of mteb (`mteb.models.SearchProtocol`, version 2), whose tasks index a corpus and search.

The corpus is indexed beforehand: BUNDLES/TASK is the bundle of a task's corpus, such as BUNDLES/SciFact.
"""

from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from lightretriever.artifacts.bundle.manifest import MANIFEST_FILE, read_manifest
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import BundleError, CorpusError
from lightretriever.artifacts.evaluation.searching import OpenSearcher, SearchMode


class BundleSearch:
    """Searches in `mode` "dense", "sparse" or "hybrid" by the engine that serves; `open_searcher` opens it."""

    def __init__(self, open_searcher: OpenSearcher, bundles: Path, *, mode: SearchMode = "hybrid") -> None:
        self._open, self._bundles, self._mode = open_searcher, bundles, mode
        self._bundle: Bundle | None = None

    def index(self, corpus: Iterable[Mapping[str, Any]], *, task_metadata: Any, **_: Any) -> None:
        """Open the bundle of the task. Raises BundleError where there is none, and CorpusError where it lacks a
        document of the task's corpus."""
        path = self._bundles / task_metadata.name
        if not path.is_dir():
            raise BundleError(f"{path}: no bundle of this task's corpus.", remedy="Build it there, then evaluate.")
        self._bundle = Bundle.open(path)
        with self._bundle.sparse() as index:
            ids = set(index.ids())
        lacking = next((str(row["id"]) for row in corpus if str(row["id"]) not in ids), None)
        if lacking is not None:
            raise CorpusError(
                f'{path}: the bundle lacks document "{lacking}" of the task {task_metadata.name}.',
                remedy="Build it from this task's corpus.",
            )

    def search(
        self,
        queries: Iterable[Mapping[str, Any]],
        *,
        top_k: int,
        top_ranked: Mapping[str, list[str]] | None = None,
        **_: Any,
    ) -> dict[str, dict[str, float]]:
        """Scores of the best `top_k` documents, of those in `top_ranked` where it is given, by query and document id.
        Raises BundleError before `index`."""
        if self._bundle is None:
            raise BundleError("There is no bundle open.", remedy="Call index first, as mteb does.")
        task, results = self._bundle.manifest.default_task, dict[str, dict[str, float]]()
        count = top_k if top_ranked is None else self._bundle.manifest.documents
        with self._open(self._bundle) as searcher:
            for row in queries:
                name, text = str(row["id"]), str(row["text"])
                hits = searcher.search(text, task=task, mode=self._mode, k=count, candidates=count, fusion=None) or []
                if top_ranked is not None:
                    allowed = set(top_ranked[name])
                    hits = [hit for hit in hits if hit[0] in allowed]
                results[name] = dict(hits[:top_k])
        return results

    @property
    def mteb_model_meta(self) -> Any:
        """What mteb's results call it, with a digest of all bundles as the revision: mteb asks before `index`, and
        keeps the results of each revision. Needs the package mteb."""
        from mteb.models.model_meta import ModelMeta

        digests = [read_manifest(file.parent).digest for file in sorted(self._bundles.glob(f"*/{MANIFEST_FILE}"))]
        revision = sha256(" ".join(digests).encode()).hexdigest()
        return ModelMeta.create_empty({"name": f"lightretriever/{self._mode}", "revision": revision})
