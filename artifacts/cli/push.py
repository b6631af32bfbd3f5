"""The command `push`: from a bundle to an index on an OpenSearch cluster."""

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from lightretriever.artifacts.bundle.manifest import MANIFEST_FILE, check_outside
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.writer import write_query_bundle
from lightretriever.artifacts.cli.live import CaFileOption, IndexOption, ToOption, UserOption, connected
from lightretriever.artifacts.cli.options import BundleArgument
from lightretriever.artifacts.cli.runner import JsonOption, running
from lightretriever.artifacts.cluster.schema import Engine
from lightretriever.artifacts.errors import importing
from lightretriever.artifacts.files.atomic_dir import check_target


def push(
    bundle: BundleArgument,
    to: ToOption,
    index: IndexOption,
    shards: Annotated[int, typer.Option("--shards", min=1, max=1024, help="Shards of the index.")] = 1,
    replicas: Annotated[int, typer.Option("--replicas", min=0, max=100, help="Copies of each shard.")] = 1,
    engine: Annotated[Engine, typer.Option("--engine", help="What searches the vectors.")] = "lucene",
    user: UserOption = None,
    ca_file: CaFileOption = None,
    query_bundle: Annotated[
        Path | None, typer.Option("--query-bundle", help="Write the part that a service on the cluster needs.")
    ] = None,
    delete_old: Annotated[bool, typer.Option("--delete-old", help="Remove the alias' former index.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing query bundle.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a bundle to an OpenSearch cluster, check it, and point the alias to it; a stopped run continues."""
    with importing("cluster"):
        from lightretriever.artifacts.cluster.push import push as push_bundle
    with running("push", as_json=as_json) as job:
        opened = Bundle.open(bundle)
        if query_bundle is not None:
            check_outside(query_bundle)
            check_target(query_bundle, overwrite=overwrite, marker=MANIFEST_FILE)
        with closing(connected(to, user, ca_file)) as cluster:
            summary = push_bundle(
                opened,
                cluster,
                index,
                engine=engine,
                shards=shards,
                replicas=replicas,
                delete_old=delete_old,
            )
        if query_bundle is not None:
            write_query_bundle(opened, query_bundle, overwrite=overwrite)
            summary.facts["query_bundle"] = str(query_bundle)
            summary.lines.append(f"{query_bundle}: the query bundle")
        job.summary = summary
