"""The demo bundle: packed for the repository, unpacked for `make demo`.

python demo/demo.py --port 8080      unpack demo/bundle.tar.xz to demo/bundle if need be, print how to search it
python demo/demo.py --unpack         unpack it, and no more
python demo/demo.py --pack BUNDLE    write demo/bundle.tar.xz from a bundle; the same bundle gives the same bytes
"""

import argparse
import hashlib
import shutil
import socket
import sys
import tarfile
import tempfile
from pathlib import Path, PurePosixPath

__all__ = ["main", "pack", "port_is_free", "unpack"]

DEMO = Path(__file__).resolve().parent
ARCHIVE = DEMO / "bundle.tar.xz"
ADVICE = """
  Serving the demo bundle on http://127.0.0.1:{port}/  (API: http://127.0.0.1:{port}/docs; Ctrl-C stops it)

  curl -s localhost:{port}/search -H 'content-type: application/json' -d '{body}'
"""
EXAMPLE = '{"query":"play music from the terminal","k":5}'


def pack(bundle: Path, archive: Path) -> None:
    """Write the files of `bundle` to the xz-compressed tar file `archive`, without owners, modes and times."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:xz", preset=9) as tar:
        for path in sorted(path for path in bundle.rglob("*") if path.is_file()):
            member = tarfile.TarInfo(path.relative_to(bundle).as_posix())
            member.size = path.stat().st_size
            with path.open("rb") as data:
                tar.addfile(member, data)


def unpack(archive: Path, target: Path) -> bool:
    """Make directory `target` hold what `archive` holds, all or nothing; False if it already did.

    The archive's SHA-256 is kept beside `target`, so a changed archive is unpacked again. A member that is no plain
    file, or whose name leads out of `target`, raises ValueError.
    """
    stamp = target.with_name(f".{target.name}.sha256")
    with archive.open("rb") as data:
        digest = hashlib.file_digest(data, "sha256").hexdigest()
    if target.is_dir() and stamp.is_file() and stamp.read_text(encoding="ascii") == digest:
        return False
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        with tarfile.open(archive, "r:*") as tar:
            for member in tar:
                _extract(tar, member, scratch / "new")
        if target.exists():
            target.rename(scratch / "old")
        (scratch / "new").rename(target)
        stamp.write_text(digest, encoding="ascii")
    finally:
        shutil.rmtree(scratch)
    return True


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    name = PurePosixPath(member.name)
    data = tar.extractfile(member) if member.isreg() else None
    if data is None or name.is_absolute() or ".." in name.parts:
        raise ValueError(f"member {member.name!r} is not a plain file below the bundle")
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with data, path.open("wb") as out:
        shutil.copyfileobj(data, out, 1 << 20)


def port_is_free(port: int) -> bool:
    """Whether a server could listen on 127.0.0.1:`port`."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen()
        except OSError:
            return False
    return True


def main(arguments: list[str] | None = None) -> int:
    """Pack a bundle, or unpack the packed one and say how to search it."""
    parser = argparse.ArgumentParser(description="Pack or unpack the demo bundle.")
    parser.add_argument("--port", type=int, default=8080, help="where the demo is going to be served")
    parser.add_argument("--pack", type=Path, metavar="BUNDLE", help="write demo/bundle.tar.xz from this bundle")
    parser.add_argument("--unpack", action="store_true", help="unpack the demo bundle and do nothing else")
    options = parser.parse_args(arguments)
    if options.pack:
        pack(options.pack, ARCHIVE)
        print(f"{ARCHIVE}: {ARCHIVE.stat().st_size:,} bytes")
        return 0
    if options.unpack:
        unpack(ARCHIVE, DEMO / "bundle")
        return 0
    if not port_is_free(options.port):
        print(f"demo: port {options.port} is taken; choose another: PORT=8081 make demo", file=sys.stderr)
        return 1
    if unpack(ARCHIVE, DEMO / "bundle"):
        print("unpacked demo/bundle")
    print(ADVICE.format(port=options.port, body=EXAMPLE), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
