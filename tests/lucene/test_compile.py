"""The committed class files are what the committed sources compile to."""

from pathlib import Path

import pytest

import lightretriever.artifacts.sparse.compile as compiling
from lightretriever.artifacts.errors import JavaError
from tests.support.wordings import raises


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of sources and classes that a test may change."""
    for path in [*compiling.FOLDER.glob("java/**/*.java"), *compiling.FOLDER.glob("classes/**/*")]:
        if path.is_file():
            target = tmp_path / path.relative_to(compiling.FOLDER)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    monkeypatch.setattr(compiling, "FOLDER", tmp_path)
    monkeypatch.setattr(compiling, "CLASSES", tmp_path / "classes")
    monkeypatch.setattr(compiling, "SUMS", tmp_path / "classes" / "SHA256SUMS")
    return tmp_path


def test_sources_compile_to_the_committed_classes() -> None:
    """So the checksums match, too. Needs ecj (Debian and Ubuntu: the package ecj)."""
    assert compiling.main(["--check"]) == 0


def test_classes_run_on_java_21() -> None:
    for path in compiling.CLASSES.glob("**/*.class"):
        header = path.read_bytes()[:8]
        assert header[:4] == b"\xca\xfe\xba\xbe"
        assert int.from_bytes(header[6:]) <= 65


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("java/lightretriever/Packed.java", "was changed"),
        ("classes/lightretriever/Packed.class", "was changed"),
        ("java/lightretriever/More.java", "is not recorded"),
    ],
)
def test_a_change_is_named(copy: Path, name: str, state: str, capsys: pytest.CaptureFixture[str]) -> None:
    with (copy / name).open("ab") as file:
        file.write(b"\n// changed\n")
    assert compiling.main(["--check"]) == 1
    assert f"{copy / name} {state}" in capsys.readouterr().err


def test_a_missing_class_is_named(copy: Path) -> None:
    (copy / "classes/lightretriever/Packed.class").unlink()
    with raises(JavaError, naming="lightretriever.artifacts.sparse.compile"):
        compiling.check_sums()


@pytest.mark.slow
def test_compiling_brings_all_into_order(copy: Path) -> None:
    source = copy / "java/lightretriever/Packed.java"
    source.write_text(source.read_text("utf-8").replace("is not valid UTF-8", "is not UTF-8"), "utf-8")
    with raises(JavaError, naming="lightretriever.artifacts.sparse.compile"):
        compiling.check_classes()
    assert compiling.main([]) == 0
    assert compiling.main(["--check"]) == 0


def test_a_source_that_does_not_compile_changes_nothing(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (copy / "classes/SHA256SUMS").read_bytes()
    (copy / "java/lightretriever/Packed.java").write_text("package lightretriever; nonsense", "utf-8")
    assert compiling.main([]) == 1
    assert "ecj failed" in capsys.readouterr().err
    assert (copy / "classes/SHA256SUMS").read_bytes() == before
