"""This service over a cluster of three OpenSearch nodes of a kit, which search the legs of a bundle.

    OPENSEARCH_HOME=FOLDER python -m research.servers.cluster BUNDLE --work FOLDER --port 0

The index is what `lightretriever push` writes, with three shards and a copy of each. The nodes stand on this machine,
too; memory and processor time of the service alone are counted.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.cluster.push import push
from lightretriever.artifacts.errors import LightRetrieverError
from lightretriever.artifacts.signals import stoppable
from lightretriever.service.collections.collections import DEFAULT
from lightretriever.service.serving.command import run
from lightretriever.service.settings import load_settings

from research.servers.bundle_documents import index_of
from research.servers.opensearch import running_nodes

__all__ = ["build_index", "main"]

_NODES: Final = 3
_NAME: Final = "documents"


def build_index(bundle: Bundle, path: Path) -> None:
    """Write a bundle to new nodes whose data lie in the folder `path`."""
    path.parent.chmod(0o755)  # the nodes' user has to enter
    with running_nodes(path, _NODES) as cluster:
        push(bundle, cluster, _NAME, shards=_NODES, replicas=1, skipped=lambda _: None, written=lambda _: None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the index with `--build`, else serve until SIGTERM; returns the exit status."""
    parser = argparse.ArgumentParser(description="Serve a bundle from a cluster of three nodes on this machine.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="folder of the nodes' data")
    parser.add_argument("--port", type=int, default=8080, help="port to listen on (8080)")
    parser.add_argument("--build", action="store_true", help="only build the index")
    given = parser.parse_args(arguments)
    try:
        path = index_of("cluster", build_index)(Bundle.open(given.bundle), given.work)
        if given.build:
            return 0
        with running_nodes(path, _NODES) as cluster:
            where = {"backend": "opensearch", "opensearch_url": cluster.name, "opensearch_index": _NAME}
            return run({DEFAULT: given.bundle}, port=given.port, settings=load_settings(given=where))
    except LightRetrieverError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    with stoppable():  # its nodes end with it
        sys.exit(main())
