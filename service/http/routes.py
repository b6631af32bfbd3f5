"""The routes. Each reads its JSON, runs the engine in a thread, and writes its JSON.

FastAPI describes them (`router`) and Starlette serves them (`served`). They have no dependencies and read their bodies
themselves, so FastAPI's request handling would add nothing and cost as much as all the rest.
"""

import asyncio
import base64
import hashlib
import platform
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from starlette.routing import Route

from lightretriever.artifacts.reports import package_version
from lightretriever.service import schemas
from lightretriever.service.errors import BundleRefusedError, NotFoundError, NotReadyError
from lightretriever.service.http import documents, openapi
from lightretriever.service.http.handling import (
    COLLECTION,
    MAX_LIGHT_BYTES,
    admitted,
    answered,
    begin,
    clock_of,
    enter,
    holder_of,
    in_thread,
    search_answered,
    state_of,
)
from lightretriever.service.http.json import ADDRESS_FIELDS, json_response, parse, parse_address
from lightretriever.service.http.openapi import KEY, QUERY, SEARCH
from lightretriever.service.search.engine import SearchEngine

router = APIRouter(default_response_class=Response)
route = partial(openapi.route, router)

_PART: Final = re.compile(r'<link rel="stylesheet" href="(?P<style>[^"]+)">|<script src="(?P<script>[^"]+)"></script>')
_PACKAGES: Final = ("lightretriever-search", "faiss-cpu", "pyserini", "tokenizers", "fastapi")
_RELOAD: Final = (*KEY, NotFoundError, BundleRefusedError, NotReadyError)
_FIELDS: Final = schemas.SearchRequest.model_json_schema()["properties"]
_ADDRESS: Final = [
    {"name": name, "in": "query", "required": False, "schema": _FIELDS[field]} for name, field in ADDRESS_FIELDS.items()
]


@route("POST", "/search", "Search", request=schemas.SearchRequest, answer=schemas.SearchResponse, errors=SEARCH)
async def search(request: Request) -> Response:
    """Find documents for one query. The two legs run in parallel where that pays, under one deadline."""
    body = await begin(request)
    small = len(body) <= MAX_LIGHT_BYTES
    return await search_answered(request, lambda: parse(body, schemas.SearchRequest), small=small)


@route(
    "GET", "/search", "Search, from the address bar", answer=schemas.SearchResponse, errors=SEARCH, parameters=_ADDRESS
)
async def search_by_address(request: Request) -> Response:
    """Find documents for the text `q`, or like the document `like`. `POST /search` takes all fields of a search."""
    enter(request, "search")
    return await search_answered(request, lambda: parse_address(request.query_params, request.scope["query_string"]))


@route(
    "POST",
    "/search/batch",
    "Search for several queries",
    request=schemas.BatchRequest,
    answer=schemas.BatchResponse,
    errors=SEARCH,
)
async def search_batch(request: Request) -> Response:
    """Find documents for several queries. The batch is answered as a whole: an error of one search fails all."""
    body, clock = await begin(request), clock_of(request)
    async with admitted(request) as engine:

        def read() -> list[Callable[[], schemas.Plain]]:
            return engine.batch(parse(body, schemas.BatchRequest).searches, clock)

        searches = await in_thread(engine, clock, read)
        tasks = [asyncio.ensure_future(in_thread(engine, clock, answer)) for answer in searches]
        try:
            results = [await task for task in tasks]
        finally:
            for task in tasks:
                task.cancel()
        # Not in the engine's threads: it has waited for them.
        return await asyncio.to_thread(json_response, {"results": results})


@route("POST", "/encode", "Encode", request=schemas.EncodeRequest, answer=schemas.EncodeResponse, errors=QUERY)
async def encode(request: Request) -> Response:
    """Encode a text as a query: its dense vector, and its tokens with their counts and weights."""
    body = await begin(request)
    return await answered(request, lambda engine, clock: engine.encode(parse(body, schemas.EncodeRequest), clock))


router.routes.extend(documents.router.routes)  # as they are, for `served`


@route("GET", "/livez", "Is the process alive?", answer=schemas.Status)
async def livez(request: Request) -> Response:
    """Answer 200 while the process runs."""
    return json_response(schemas.Status(status="alive"))


@route("GET", "/readyz", "Should it get requests?", answer=schemas.Status, errors=(NotReadyError,))
async def readyz(request: Request) -> Response:
    """Answer 200 once a search has used both legs, and 503 before that, while the threads of a leg are stuck, and while
    the cluster does not answer, if there is one."""
    holders = [holder_of(request)] if COLLECTION in request.scope["state"] else [*state_of(request).collections]
    for holder in holders:
        await asyncio.to_thread(holder.engine.parts.backends.probe)
        holder.engine.require_ready()
    parts = [holder.engine.parts for holder in holders]
    warnings = [one.backends.live.warning for one in parts if one.backends.live is not None]
    warnings += [one.rules.problem for one in parts if one.rules is not None]
    warning = " ".join(dict.fromkeys(filter(None, warnings))) or None
    return json_response(schemas.Status(status="ready", index=parts[0].index, warning=warning))


@route("GET", "/collections", "Which collections are there?", answer=schemas.CollectionList)
async def collections(request: Request) -> Response:
    """List the collections. Every other route also stands below `/collections/NAME`, for that collection; without it,
    the first is meant."""
    facts = [_collection(holder.name, holder.engine) for holder in state_of(request).collections]
    return json_response(schemas.CollectionList(collections=facts))


@route("GET", "/info", "What is served?", answer=schemas.Info)
async def info(request: Request) -> Response:
    """Return the bundle's facts, the tasks and fields a request may name, and the limits of a request."""
    names = [holder.name for holder in state_of(request).collections]
    return json_response(_info(holder_of(request).engine, names))


@route("GET", "/metrics", "Metrics for Prometheus", answer="text/plain")
async def metrics(request: Request) -> Response:
    """Return all metrics in Prometheus' text format."""
    text = await asyncio.to_thread(state_of(request).collections.first.metrics.text)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


@route("POST", "/admin/reload", "Serve the present bundle", answer=schemas.Reloaded, errors=_RELOAD)
async def reload(request: Request) -> Response:
    """Check the served folder now, and answer when its bundle has been swapped in or refused.

    Needs an API key with the scope `admin`. The request names no path: the folder is that of the command line.
    """
    enter(request, "admin")
    swapped = await holder_of(request).reload()
    return json_response(schemas.Reloaded(swapped=swapped, bundle=_bundle_facts(holder_of(request).engine)))


@route("GET", "/", "Search page", answer="text/html")
async def page(request: Request) -> Response:
    """Return a page that searches as you type."""
    return _PAGE()


def _read_page(path: Path) -> Callable[[], Response]:
    """Return what makes a page's answer, with the scripts and styles inline that it names (`src`, `href`). The policy
    lists their hashes, so an injected script never runs. OSError for a missing part."""

    hashes: dict[str, list[str]] = {"script": [], "style": []}

    def inlined(part: re.Match[str]) -> str:
        tag = str(part.lastgroup)
        content = f"\n{(path.parent / part[tag]).read_text('utf-8')}"
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest())
        hashes[tag].append(f"'sha256-{digest.decode()}'")
        return f"<{tag}>{content}</{tag}>"

    html = _PART.sub(inlined, path.read_text("utf-8"))
    policy = (
        f"default-src 'none'; script-src {' '.join(hashes['script'])}; style-src {' '.join(hashes['style'])}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = {"content-security-policy": policy, "cache-control": "no-cache"}
    return partial(Response, html.encode(), headers=headers, media_type="text/html")


_PAGE: Final = _read_page(Path(__file__).parents[1] / "static" / "page.html")


def _bundle_facts(engine: SearchEngine) -> schemas.BundleFacts:
    manifest = engine.bundle.manifest
    sparse = manifest.sparse.model
    facts = manifest.model_dump(include={"name", "created", "generator", "documents", "dimension", "vocab_size"})
    facts |= manifest.sparse.model_dump(include={"vocabulary", "query_weights"})
    return schemas.BundleFacts(
        **facts,
        version=manifest.digest,
        model=manifest.model.name,
        trained=manifest.model.trained,
        corpus=manifest.corpus.name,
        corpus_licence=manifest.corpus.licence,
        sparse_vocab_size=None if manifest.sparse.tokenizer is None else manifest.sparse_vocab_size,
        sparse_model=None if sparse is None else schemas.ModelFacts.model_validate(sparse.model_dump()),
        dense_index=None if manifest.dense is None else manifest.dense.factory,
        language=manifest.sparse.language,
        expanded=manifest.sparse.expansion is not None,
        fusion_weights=engine.reader.weights,
        feedback=engine.reader.feedback,
        normalization=engine.reader.normalization,
    )


def _collection(name: str, engine: SearchEngine) -> schemas.CollectionFacts:
    manifest = engine.bundle.manifest
    return schemas.CollectionFacts(
        name=name, bundle=manifest.name, version=manifest.digest, documents=manifest.documents, ready=engine.ready
    )


def _info(engine: SearchEngine, collections: list[str]) -> schemas.Info:
    manifest, settings, backends = engine.bundle.manifest, engine.settings, engine.parts.backends
    encoder = engine.parts.document_encoder
    return schemas.Info(
        bundle=_bundle_facts(engine),
        collections=collections if len(collections) > 1 else [],
        legs={name: schemas.LegFacts(backend=backend) for name, backend in backends.legs.items()},
        cluster=backends.cluster,
        document_model=None if encoder is None else " + ".join(model.name for model in encoder.encoders.models),
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
        fields=list(engine.reader.fields),
        spelling=backends.spellings is not None,
        filters=manifest.fields,
        limits=schemas.Limits.model_validate({name: getattr(settings, name) for name in schemas.Limits.model_fields}),
        versions={"python": platform.python_version()}
        | {name: package_version(name) or "not installed" for name in _PACKAGES},
    )


def served() -> list[Route]:
    """Return the routes for Starlette."""
    described = (route for route in router.routes if isinstance(route, APIRoute))
    return [Route(route.path, route.endpoint, methods=list(route.methods or ())) for route in described]
