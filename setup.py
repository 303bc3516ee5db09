"""Builds the ``cext`` extensions; everything else stands in pyproject.toml.

Build variants are chosen by one environment variable, ``SIDECAR_BUILD``:

* unset or ``release``: optimised, compiler warnings are errors;
* ``trace``: line tracing for coverage of the ``.pyx`` files;
* ``sanitize``: AddressSanitizer and UndefinedBehaviorSanitizer.
"""

from __future__ import annotations

import os
from pathlib import Path

from Cython.Build import cythonize
from Cython.Compiler import Options
from setuptools import Extension, setup

Options.warning_errors = True

VARIANT = os.environ.get("SIDECAR_BUILD", "release")
WARNINGS = ["-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-Wno-cast-function-type"]
FLAGS: dict[str, tuple[list[str], list[str]]] = {
    "release": (["-O3", *WARNINGS], []),
    "trace": (["-O1", "-DCYTHON_TRACE=1", "-DCYTHON_TRACE_NOGIL=1"], []),
    "sanitize": (
        ["-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"],
        ["-fsanitize=address,undefined"],
    ),
}
compile_args, link_args = FLAGS[VARIANT]
LIBRARIES: dict[str, list[str]] = {}

modules = [
    Extension(
        f"cext.{source.stem}",
        [str(source)],
        extra_compile_args=compile_args,
        extra_link_args=link_args,
        libraries=LIBRARIES.get(source.stem, []),
    )
    for source in sorted(Path("cext").glob("*.pyx"))
]

setup(
    ext_modules=cythonize(
        modules,
        language_level="3",
        compiler_directives={
            "boundscheck": False,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
            "linetrace": VARIANT == "trace",
            "warn.undeclared": False,
        },
        annotate=bool(os.environ.get("SIDECAR_ANNOTATE")),
        force=VARIANT != "release",
    )
    if modules
    else []
)
