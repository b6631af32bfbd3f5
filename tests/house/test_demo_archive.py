"""A bundle in one archive: the same bundle gives the same bytes, and unpacking is safe and all or nothing."""

import io
import os
import random
import tarfile
from pathlib import Path

import pytest

from demo.pack import pack
from lightretriever.artifacts.bundle.archive import unpack
from lightretriever.artifacts.errors import BundleError
from tests.support.wordings import raises


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "lucene").mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    (folder / "lucene" / "segments_1").write_bytes(bytes(range(256)) * 40)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_same_bundle_gives_same_bytes(bundle: Path, tmp_path: Path) -> None:
    pack(bundle, tmp_path / "first")
    for path in bundle.rglob("*"):
        os.utime(path, (0, 12345))
    pack(bundle, tmp_path / "second")
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


def test_unpacks_again_only_when_the_archive_changed(bundle: Path, tmp_path: Path) -> None:
    archive, target = tmp_path / "bundle.tar.xz", tmp_path / "bundle"
    pack(bundle, archive)
    unpack(archive, target)
    assert not unpack(archive, target)
    (bundle / "lucene" / "segments_1").rename(bundle / "lucene" / "segments_2")
    pack(bundle, archive)
    assert unpack(archive, target)
    assert contents(target) == contents(bundle)


def member(name: str, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = "/etc/passwd"
    return info


@pytest.mark.parametrize(
    "bad", [member("../outside"), member("/absolute"), member("link", tarfile.SYMTYPE), member("hard", tarfile.LNKTYPE)]
)
def test_a_bad_member_leaves_everything_as_it_was(bundle: Path, tmp_path: Path, bad: tarfile.TarInfo) -> None:
    archive, target = tmp_path / "bundle.tar.xz", tmp_path / "bundle"
    pack(bundle, archive)
    unpack(archive, target)
    with tarfile.open(archive, "w:xz") as tar:
        tar.addfile(member("good"), io.BytesIO(b""))
        tar.addfile(bad)
    before = {path.name for path in tmp_path.iterdir()}
    with raises(BundleError):
        unpack(archive, target)
    assert contents(target) == contents(bundle)
    assert {path.name for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("damage", ["truncated", "without a file"])
def test_a_damaged_archive_leaves_everything_as_it_was(bundle: Path, tmp_path: Path, damage: str) -> None:
    archive, target = tmp_path / "bundle.tar.xz", tmp_path / "bundle"
    (bundle / "tables.npy").write_bytes(random.Random(0).randbytes(100_000))
    pack(bundle, archive)
    unpack(archive, target)
    if damage == "truncated":
        archive.write_bytes(archive.read_bytes()[:60_000])
    else:
        tarfile.open(archive, "w:xz").close()
    before = {path.name for path in tmp_path.iterdir()}
    with raises(BundleError, naming="bundle.tar.xz"):
        unpack(archive, target)
    assert contents(target) == contents(bundle)
    assert {path.name for path in tmp_path.iterdir()} == before
