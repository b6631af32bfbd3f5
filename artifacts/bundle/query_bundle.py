"""Writing the part of a bundle that encodes queries, for a service whose indexes are on a cluster."""

import shutil
from pathlib import Path

from lightretriever.artifacts.bundle.paths import MANIFEST_FILE
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.files.atomic_dir import new_folder

__all__ = ["write_query_bundle"]


def write_query_bundle(bundle: Bundle, target: Path, *, overwrite: bool = False) -> Bundle:
    """Copy all files but the two indexes into the folder `target`, which appears whole or not at all.

    The manifest stays the same, and so does the version. Raises BundleError when `target` is in the way.
    """
    part = Bundle(bundle.path, bundle.manifest, indexes=False)
    with new_folder(target, overwrite=overwrite, marker=MANIFEST_FILE) as folder:
        for file in [MANIFEST_FILE, *part.files]:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(bundle.path / file, folder / file)
    return Bundle.open(target, indexes=False)
