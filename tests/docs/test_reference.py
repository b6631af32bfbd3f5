"""docs/cli.md and docs/api.md have all that the code has; a change of the code without them fails here."""

import re
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from lightretriever.service import schemas
from lightretriever.service.cli import app
from research.pages import reference
from tests.support.wordings import raises

ROOT = Path(__file__).resolve().parents[2]


def test_the_pages_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert reference.main(["--check"]) == 0, capsys.readouterr().err


def test_every_command_and_every_option_has_a_help() -> None:
    commands = get_command(app)
    assert isinstance(commands, TyperGroup)
    texts: dict[str, Any] = {name: command.help for name, command in commands.commands.items()}
    for name, command in commands.commands.items():
        texts |= {f"{name} {parameter.name}": getattr(parameter, "help", None) for parameter in command.params}
    assert [name for name, text in texts.items() if not text] == []


def test_every_model_of_the_api_is_on_the_page() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    for name in schemas.__all__:
        model = getattr(schemas, name)
        if not hasattr(model, "model_fields"):
            continue  # a type of a field
        section = text.partition(f"\n### {name}\n")[2].partition("\n### ")[0]
        assert section, name
        fields = [field.alias or key for key, field in model.model_fields.items()]
        listed = re.findall(r"(?:^- |^|, )`(\w+)`(?::| )", section, flags=re.MULTILINE)
        assert [field for field in listed if field in fields] == fields, name


def test_check_names_page_and_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs").mkdir()
    for name in ("cli.md", "api.md"):
        (tmp_path / "docs" / name).write_text(f"before\n{reference.PART.begin}\nold\n{reference.PART.end}\nafter\n")
    monkeypatch.setattr(reference, "ROOT", tmp_path)
    assert reference.main(["--check"]) == 1
    assert "docs/cli.md: differs from the code; run: python -m research.pages.reference" in capsys.readouterr().err
    assert "\nold\n" in (tmp_path / "docs" / "cli.md").read_text()
    assert reference.main([]) == 0
    assert reference.main(["--check"]) == 0
    assert (tmp_path / "docs" / "api.md").read_text().startswith(f"before\n{reference.PART.begin}\n## Routes\n")
    (tmp_path / "docs" / "cli.md").write_text("no markers")
    with raises(ValueError, naming="reference.py"):
        reference.main([])
