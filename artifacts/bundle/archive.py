"""A bundle in one file, an xz-compressed tar archive: the form in which the demo bundle is kept."""

import shutil
import tarfile
import tempfile
from pathlib import Path

from lightretriever.artifacts.errors import BundleError
from lightretriever.artifacts.files.reading import file_sha256


def unpack(archive: Path, target: Path) -> bool:
    """Make the folder `target` hold what an archive holds, all or nothing; False if it already did.

    The archive's SHA-256 is kept beside `target`, so a changed archive is unpacked again. BundleError for an archive
    that is cut off, and for a member that leads out of `target`. OSError.
    """
    stamp = target.with_name(f".{target.name}.sha256")
    digest = file_sha256(archive)
    if target.is_dir() and stamp.is_file() and stamp.read_text(encoding="ascii") == digest:
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(scratch / "new", filter="data")
        except (tarfile.TarError, EOFError) as error:
            raise BundleError(f"{archive}: not a whole archive: {error}.", remedy="Fetch it again.") from error
        if not (scratch / "new").is_dir():
            raise BundleError(f"{archive}: there is no file in it.", remedy="Fetch it again.")
        if target.exists():
            target.rename(scratch / "old")
        (scratch / "new").rename(target)
        stamp.write_text(digest, encoding="ascii")
    finally:
        shutil.rmtree(scratch)
    return True
