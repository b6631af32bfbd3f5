"""The committed class files are what the committed sources compile to."""

from pathlib import Path

import lightretriever.artifacts.sparse.compile as compiling
import pytest
from lightretriever.artifacts.errors import JavaError


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


def test_checksums_match_sources_and_classes() -> None:
    compiling.check_sums()


def test_sources_compile_to_the_committed_classes() -> None:
    """Needs a javac (Debian: default-jdk-headless)."""
    assert compiling.main(["--check"]) == 0


def test_classes_run_on_java_11_and_later() -> None:
    for path in compiling.CLASSES.glob("**/*.class"):
        header = path.read_bytes()[:8]
        assert header[:4] == b"\xca\xfe\xba\xbe"
        assert int.from_bytes(header[6:]) == 55


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
    with pytest.raises(JavaError, match=r"classes/lightretriever/Packed\.class is missing; .* Run `python -m"):
        compiling.check_sums()


def test_compiling_brings_all_into_order(copy: Path) -> None:
    source = copy / "java/lightretriever/Packed.java"
    source.write_text(source.read_text("utf-8").replace("is not valid UTF-8", "is not UTF-8"), "utf-8")
    with pytest.raises(JavaError, match=r"Packed\.class differs"):
        compiling.check_classes()
    assert compiling.main([]) == 0
    assert compiling.main(["--check"]) == 0


def test_a_source_that_does_not_compile_changes_nothing(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (copy / "classes/SHA256SUMS").read_bytes()
    (copy / "java/lightretriever/Packed.java").write_text("package lightretriever; nonsense", "utf-8")
    assert compiling.main([]) == 1
    assert "javac failed" in capsys.readouterr().err
    assert (copy / "classes/SHA256SUMS").read_bytes() == before


def test_without_javac_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(JavaError, match=r"There is no javac on PATH nor in JAVA_HOME\. Install a JDK"):
        compiling.check_classes()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "javac").write_text("#!/bin/sh\necho found it\nexit 3\n")
    (tmp_path / "bin" / "javac").chmod(0o755)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(JavaError, match="javac failed: found it"):
        compiling.check_classes()
