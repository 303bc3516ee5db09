"""Builds of ``cext`` that are not the product: each in its own copy of the tree under build/, never beside the release.

``python tools/variant.py annotate``  what Cython made of each line, as HTML
``python tools/variant.py coverage``  tests of cext and the wire with coverage of .pyx and .py
``python tools/variant.py sanitize``  the same tests and a seeded fuzz under AddressSanitizer and UBSan
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
LEFT_OUT = shutil.ignore_patterns(".*", "build", "dist", "__pycache__", "*.egg-info", "*.so", "*.c", "*.html")
CEXT_TESTS = ["tests/unit/cext", "tests/unit/wire", "tests/property", "tests/vectors"]
COVERED = "cext/*,sidecar/coordinator/wire/*"
# Slow builds: no deadline of a single test, no complaint about slow generation, the same examples in every run.
PYTEST = [sys.executable, "-m", "pytest", "--timeout", "1200", "--hypothesis-profile", "ci"]
SANITIZED_FUZZ_SECONDS = "20"


def copy_tree(name: str) -> Path:
    """A fresh copy of the sources in build/NAME."""
    tree = BUILD / name
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(ROOT, tree, ignore=LEFT_OUT)
    return tree


def run(tree: Path, argv: list[str], **environment: str) -> int:
    """Run a command in the copy, which comes before the installed packages."""
    env = {**os.environ, "PYTHONPATH": str(tree), **environment}
    return subprocess.run(argv, cwd=tree, env=env, check=False).returncode


def compile_tree(tree: Path, variant: str) -> None:
    """Compile cext in the copy; the process ends when that fails."""
    if code := run(tree, [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], SIDECAR_BUILD=variant):
        raise SystemExit(code)


def annotate() -> int:
    tree = copy_tree("annotate")
    # Asking setup.py for the version translates every module and compiles none.
    code = run(tree, [sys.executable, "setup.py", "--quiet", "--version"], SIDECAR_ANNOTATE="1")
    for page in sorted(tree.glob("cext/*.html")):
        print(page.relative_to(ROOT))
    return code


def coverage() -> int:
    tree = copy_tree("coverage")
    compile_tree(tree, "trace")
    tests = [sys.executable, "-m", "coverage", "run", *PYTEST[1:], "-p", "tools.weighing", *CEXT_TESTS]
    # The plugin that knows .pyx files works with the C tracer only.
    code = run(tree, tests, COVERAGE_CORE="ctrace")
    run(tree, [sys.executable, "-m", "coverage", "report", "--show-missing", "--skip-empty", f"--include={COVERED}"])
    return code


def runtime_library(name: str) -> str:
    """Where the C compiler keeps one of its run-time libraries."""
    compiler = os.environ.get("CC", "cc").split()[0]
    found = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    path = Path(found.stdout.strip())
    if not path.is_absolute():
        raise SystemExit(f"{compiler} has no {name}: install the compiler's sanitizer libraries")
    return str(path.resolve())


def sanitize() -> int:
    tree = copy_tree("sanitize")
    compile_tree(tree, "sanitize")
    reports = tree / "reports"
    reports.mkdir()
    environment = {
        # libstdc++ too, or exceptions thrown in C++ extensions cannot be intercepted.
        "LD_PRELOAD": " ".join(map(runtime_library, ("libasan.so", "libstdc++.so.6"))),
        # CPython itself leaks by design at exit. Its own allocator would hide overflows inside its arenas.
        "ASAN_OPTIONS": f"detect_leaks=0:log_path={reports}/asan",
        "UBSAN_OPTIONS": f"print_stacktrace=1:log_path={reports}/ubsan",
        "PYTHONMALLOC": "malloc",
    }
    code = run(tree, [*PYTEST, *CEXT_TESTS], **environment)
    fuzz = [sys.executable, "-m", "tests.fuzz", "--seed", "1", "--seconds", SANITIZED_FUZZ_SECONDS]
    code = run(tree, fuzz, **environment) or code
    found = sorted(reports.iterdir())
    for report in found:
        print(f"--- {report.name}\n{report.read_text(errors='replace')}", file=sys.stderr)
    print(f"sanitizers: {len(found)} reports")
    return code or bool(found)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variant", choices=["annotate", "coverage", "sanitize"])
    variants = {"annotate": annotate, "coverage": coverage, "sanitize": sanitize}
    raise SystemExit(variants[parser.parse_args().variant]())
