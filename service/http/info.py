"""The answer of `/info`: what is served, and the limits of a request."""

import platform
from typing import Final

from lightretriever.artifacts.bundle.software import package_version
from lightretriever.service import schemas
from lightretriever.service.collections.collections import Collections
from lightretriever.service.search.engine import SearchEngine

__all__ = ["bundle_facts", "info_of", "list_collections"]

_PACKAGES: Final = ("lightretriever-search", "faiss-cpu", "pyserini", "tokenizers", "fastapi")


def bundle_facts(engine: SearchEngine) -> schemas.BundleFacts:
    """Describe the served bundle."""
    manifest = engine.bundle.manifest
    sparse = manifest.sparse.model
    return schemas.BundleFacts(
        name=manifest.name,
        version=manifest.digest,
        created=manifest.created,
        generator=manifest.generator,
        model=manifest.model.name,
        trained=manifest.model.trained,
        corpus=manifest.corpus.name,
        corpus_licence=manifest.corpus.licence,
        documents=manifest.documents,
        dimension=manifest.dimension,
        vocab_size=manifest.vocab_size,
        sparse_vocab_size=None if manifest.sparse.tokenizer is None else manifest.sparse_vocab_size,
        sparse_model=None if sparse is None else schemas.ModelFacts.model_validate(sparse.model_dump()),
        dense_index=None if manifest.dense is None else manifest.dense.factory,
        vocabulary=manifest.sparse.vocabulary,
        language=manifest.sparse.language,
        expanded=manifest.sparse.expansion is not None,
        query_weights=manifest.sparse.query_weights,
        fusion_weights=engine.reader.weights,
        feedback=engine.reader.feedback,
        normalization=engine.reader.normalization,
    )


def list_collections(collections: Collections) -> schemas.CollectionList:
    """Describe the collections of the process."""
    return schemas.CollectionList(collections=[_collection(holder.name, holder.engine) for holder in collections])


def _collection(name: str, engine: SearchEngine) -> schemas.CollectionFacts:
    manifest = engine.bundle.manifest
    return schemas.CollectionFacts(
        name=name, bundle=manifest.name, version=manifest.digest, documents=manifest.documents, ready=engine.ready
    )


def info_of(engine: SearchEngine, collections: list[str]) -> schemas.Info:
    """Describe the served bundle, its legs and the limits, among the named collections."""
    manifest, settings, backends = engine.bundle.manifest, engine.settings, engine.parts.backends
    return schemas.Info(
        bundle=bundle_facts(engine),
        collections=collections if len(collections) > 1 else [],
        legs={name: schemas.LegFacts(backend=leg.backend) for name, leg in backends.legs.items()},
        cluster=backends.cluster,
        document_model=None if engine.parts.document_encoder is None else engine.parts.document_encoder.encoders.name,
        default_task=manifest.default_task,
        tasks={name: task.instruction for name, task in manifest.tasks.items()},
        head_queries={name: task.head.queries for name, task in manifest.tasks.items() if task.head is not None},
        matched={
            name: schemas.MatchLimits(**task.match.model_dump())
            for name, task in manifest.tasks.items()
            if task.match is not None
        },
        rerank_top=None if engine.parts.reranker is None else engine.parts.reranker.top,
        modes=list(engine.reader.modes),
        examples=engine.examples if settings.api_keys_file is None else [],
        fields=engine.fields,
        spelling=backends.spellings is not None,
        filters=manifest.fields,
        limits=schemas.Limits.model_validate({name: getattr(settings, name) for name in schemas.Limits.model_fields}),
        versions={"python": platform.python_version()}
        | {name: package_version(name) or "not installed" for name in _PACKAGES},
    )
