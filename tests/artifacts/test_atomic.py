"""New folders appear whole or not at all."""

import os
from pathlib import Path

import pytest

from artifacts.atomic import new_folder
from artifacts.errors import BundleError


def write(target: Path, text: str, *, overwrite: bool = False) -> None:
    with new_folder(target, overwrite=overwrite, marker="marker") as folder:
        (folder / "marker").write_text(text, encoding="utf-8")
        (folder / "sub").mkdir()
        (folder / "sub" / "file").write_text(text, encoding="utf-8")
        assert folder.parent == target.parent  # the same file system, so that the rename is one


def write_half(target: Path, error: type[BaseException]) -> None:
    with new_folder(target, overwrite=True, marker="marker") as folder:
        (folder / "marker").touch()
        raise error


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_the_folder_is_not_there_until_the_block_has_ended(tmp_path: Path) -> None:
    with new_folder(tmp_path / "t", overwrite=False, marker="marker") as folder:
        (folder / "marker").touch()
        assert not (tmp_path / "t").exists()
    assert names(tmp_path) == ["t", "t/marker"]


def test_overwriting_replaces_everything(tmp_path: Path) -> None:
    write(tmp_path / "t", "old")
    (tmp_path / "t" / "left-over").touch()
    write(tmp_path / "t", "new", overwrite=True)
    assert names(tmp_path) == ["t", "t/marker", "t/sub", "t/sub/file"]
    assert (tmp_path / "t" / "sub" / "file").read_text(encoding="utf-8") == "new"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_a_failure_leaves_the_old_folder(tmp_path: Path, error: type[BaseException]) -> None:
    write(tmp_path / "t", "old")
    before = names(tmp_path)
    with pytest.raises(error):
        write_half(tmp_path / "t", error)
    assert names(tmp_path) == before


def test_what_came_in_the_way_meanwhile_is_kept(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="exists already"), new_folder(tmp_path / "t", overwrite=False, marker="m"):
        write(tmp_path / "t", "another process was faster")
    assert names(tmp_path) == ["t", "t/marker", "t/sub", "t/sub/file"]


@pytest.mark.parametrize("make", ["file", "link", "folder"])
def test_only_a_folder_with_the_marker_is_overwritten(tmp_path: Path, make: str) -> None:
    target = tmp_path / "t"
    if make == "file":
        target.write_text("precious", encoding="utf-8")
    elif make == "link":
        write(tmp_path / "real", "precious")
        target.symlink_to(tmp_path / "real")
    else:
        target.mkdir()
    before = names(tmp_path)
    with pytest.raises(BundleError, match="is not overwritten"):
        write(target, "new", overwrite=True)
    assert names(tmp_path) == before


def test_a_place_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BundleError, match=rf"{tmp_path}/file/t can't be written: .*Not a directory"):
        write(tmp_path / "file" / "t", "x")


def test_a_relative_target_stays_where_it_was_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with new_folder(Path("t"), overwrite=False, marker="marker") as folder:
        (folder / "marker").touch()
        os.chdir("/")
    assert names(tmp_path) == ["t", "t/marker"]


def test_the_folder_has_ordinary_permissions(tmp_path: Path) -> None:
    (tmp_path / "usual").mkdir()
    write(tmp_path / "t", "x")
    assert (tmp_path / "t").stat().st_mode == (tmp_path / "usual").stat().st_mode
