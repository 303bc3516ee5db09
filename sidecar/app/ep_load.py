"""The endpoint that somebody wrote: ``FILE.py:NAME`` or ``MODULE:NAME``, imported as a program of its own would be."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from sidecar.rails.endpoint.app import Endpoint

_DEFAULT = "endpoint"


class NotLoaded(Exception):  # noqa: N818 - what happened
    """There is no endpoint where it was said to be. The message says why, and in which line of whose file."""

    exit_code = 2


def load(where: str) -> Endpoint:
    """The endpoint in a file or module; without ``:NAME`` the one that is called ``endpoint``. Its code runs with the
    rights of whoever loads it. Raises NotLoaded."""
    place, colon, name = where.rpartition(":")
    if not colon:
        place, name = where, _DEFAULT
    if not place or not name.isidentifier():
        raise NotLoaded(f"{where}: an endpoint is FILE.py:NAME or MODULE:NAME")
    module = _file(Path(place)) if place.endswith(".py") else _module(place)
    found = getattr(module, name, None)
    if not isinstance(found, Endpoint):
        known = sorted(one for one, value in vars(module).items() if isinstance(value, Endpoint))
        there = f"; there are {', '.join(known)}" if known else ""
        raise NotLoaded(f"{place} has no endpoint called {name}{there}")
    return found


def _file(path: Path) -> ModuleType:
    if not path.is_file():
        raise NotLoaded(f"{path}: there is no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    sys.path.insert(0, str(path.resolve().parent))  # what lies beside it is found, as when it is run itself
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(path.stem)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        if before is None:
            del sys.modules[path.stem]
        else:
            sys.modules[path.stem] = before
        raise NotLoaded(_why(path.name, error, path)) from None
    return module


def _module(name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise NotLoaded(_why(name, error)) from None


def _why(where: str, error: Exception, path: Path | None = None) -> str:
    """The error of foreign code in one line, with the innermost place in its own file: a declaration that is refused is
    raised in ours, where its author has nothing to look for."""
    if isinstance(error, SyntaxError):
        return f"{where}: line {error.lineno}: {error.msg}"
    frames = [one for one in traceback.extract_tb(error.__traceback__) if "importlib" not in one.filename]
    own = [one for one in frames if path is not None and Path(one.filename).resolve() == path.resolve()]
    at = own[-1] if own else frames[-1] if frames else None
    place = f"{Path(at.filename).name} line {at.lineno}: " if at is not None else f"{where}: "
    return f"{place}{type(error).__name__}: {error}"
