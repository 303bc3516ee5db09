"""A disk that can be made to hang: an SQLite file system whose sync does not return while a marker file exists.

Python runs ``SITE`` before everything else when it lies on the path as ``sitecustomize.py``, so that the program under
test is the real one, with its real store.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

MARKER: Final = "TEST_DISK_HANGS"
"""Environment variable with the path of the marker file."""
ROOT: Final = Path(__file__).resolve().parents[2]

SITE: Final = """
import os, time
import apsw

class File(apsw.VFSFile):
    def xSync(self, flags):
        while os.path.exists(os.environ["TEST_DISK_HANGS"]):
            time.sleep(0.01)
        return super().xSync(flags)

class Disk(apsw.VFS):
    def __init__(self):
        super().__init__("hanging", "unix", makedefault=True)

    def xOpen(self, name, flags):
        return File("unix", name, flags)

disk = Disk()
"""


def install(directory: Path) -> tuple[dict[str, str], Path]:
    """Environment of a program whose disk hangs while the marker exists, and that marker. It does not exist yet."""
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(SITE)
    marker = directory / "hangs"
    return {"PYTHONPATH": os.pathsep.join([str(directory), str(ROOT)]), MARKER: str(marker)}, marker
