"""Loading the endpoint that somebody wrote, and what is said when there is none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.app.ep_load import NotLoaded, load
from sidecar.app.scaffold import DEFAULT_NAME, files

GOOD = files(DEFAULT_NAME)["endpoint.py"]


@pytest.fixture(autouse=True)
def unchanged(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def written(directory: Path, text: str, name: str = "mine.py") -> Path:
    path = directory / name
    path.write_text(text)
    return path


def test_a_file_with_what_lies_beside_it(tmp_path: Path) -> None:
    written(tmp_path, f"NAME = '{DEFAULT_NAME}'", "beside_it.py")
    path = written(
        tmp_path, GOOD.replace(f'"{DEFAULT_NAME}"', "NAME").replace('"""\n', '"""\nfrom beside_it import NAME\n', 1)
    )
    assert load(f"{path}:endpoint").name == DEFAULT_NAME
    assert load(str(path)).name == DEFAULT_NAME


def test_a_mistake_is_told_where_its_author_made_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, GOOD.replace("async def", "def"))
    for where in (path, Path("mine.py"), Path("..") / tmp_path.name / "mine.py"):
        with pytest.raises(NotLoaded, match=r"^mine\.py line \d+: ValueError: hello: its handler is no async def$"):
            load(str(where))


def test_a_module_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, GOOD, "a_module_of_mine.py")
    monkeypatch.chdir(tmp_path)
    assert load("a_module_of_mine:endpoint").name == DEFAULT_NAME


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x = 1", "has no endpoint called endpoint$"),
        ("endpoint = 1", "has no endpoint called endpoint$"),
        (GOOD.replace("endpoint = ", "other = ").replace("@endpoint", "@other"), "called endpoint; there are other"),
        ("def x(:", r"mine.py: line 1: "),
        ("\n\nraise KeyError('a')", "mine.py line 3: KeyError: 'a'"),
        ("import not_there_at_all", "ModuleNotFoundError: No module named 'not_there_at_all'"),
        (GOOD.replace(DEFAULT_NAME, "Not A Name"), "mine.py line 5: InvalidName: endpoint name"),
    ],
)
def test_a_file_without_one_is_told_in_one_line(tmp_path: Path, text: str, why: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(NotLoaded, match=why):
        load(f"{path}:endpoint")
    assert "mine" not in sys.modules or text in ("x = 1", "endpoint = 1") or "other" in text


@pytest.mark.parametrize("where", ["", ":endpoint", "a.py:not a name", "not_there_at_all:endpoint", "not/there.py:e"])
def test_a_place_that_is_none(where: str) -> None:
    with pytest.raises(NotLoaded):
        load(where)
