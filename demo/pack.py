"""Write a bundle to an xz-compressed tar archive, the form in which the demo bundle is kept.

python -m demo.pack BUNDLE demo/bundle.tar.xz
"""

import argparse
import tarfile
from pathlib import Path


def pack(bundle: Path, archive: Path) -> None:
    """Write the files of a bundle to an archive, without owners, modes and times, so the same ones give the same
    bytes."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:xz", preset=9) as tar:
        for path in sorted(path for path in bundle.rglob("*") if path.is_file()):
            member = tarfile.TarInfo(path.relative_to(bundle).as_posix())
            member.size = path.stat().st_size
            with path.open("rb") as data:
                tar.addfile(member, data)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write a bundle to an archive.")
    parser.add_argument("bundle", type=Path, help="folder of the bundle")
    parser.add_argument("archive", type=Path, help="file to write, such as demo/bundle.tar.xz")
    given = parser.parse_args()
    pack(given.bundle, given.archive)
