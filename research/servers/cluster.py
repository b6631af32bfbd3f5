"""This service over a cluster of three OpenSearch nodes of a kit, which search the legs of a bundle.

    OPENSEARCH_HOME=FOLDER python -m research.servers.cluster BUNDLE --work FOLDER --port 0

The index is what `lightretriever push` writes, with three shards and a copy of each. The nodes stand on this machine,
too; memory and processor time of the service alone are counted.
"""

import sys
from argparse import Namespace
from pathlib import Path
from typing import Final

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.cluster.push import push
from lightretriever.loadtest.program import program
from lightretriever.service.collections.collections import DEFAULT
from lightretriever.service.serving.command import run
from lightretriever.service.settings import load_settings
from research.servers.bundle_documents import index_of
from research.servers.minimal_server import SYSTEM
from research.servers.opensearch import running_nodes

__all__ = ["build_index", "main"]

_NODES: Final = 3
_NAME: Final = "documents"


def build_index(bundle: Bundle, path: Path) -> None:
    """Write a bundle to new nodes whose data lie in the folder `path`."""
    path.parent.chmod(0o755)  # the nodes' user has to enter
    with running_nodes(path, _NODES) as cluster:
        push(bundle, cluster, _NAME, shards=_NODES, replicas=1, skipped=lambda _: None, written=lambda _: None)


@program(*SYSTEM)
def main(given: Namespace) -> None:
    """Build the index with `--build`, else serve until SIGTERM."""
    path = index_of("cluster", build_index)(Bundle.open(given.bundle), given.work)
    if given.build:
        return
    with running_nodes(path, _NODES) as cluster:
        where = {"backend": "opensearch", "opensearch_url": cluster.name, "opensearch_index": _NAME}
        run({DEFAULT: given.bundle}, host=given.host, port=given.port, settings=load_settings(given=where))


if __name__ == "__main__":
    sys.exit(main())
