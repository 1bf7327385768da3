"""How large the house is: lines, files, functions and comments of the package and its tests.

    python benchmarks/code_metrics.py [CHECKOUT]

It reads the source of a checkout (this one by default; a second one, say the commit before, for comparison) and takes a
second. `comments` are lines of a `#` comment of its own or at the end of code, without licence heads and `# type:`,
`# noqa` and shebang lines; docstrings do not count as comments. Every line counts as a line, blank ones too.
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path
from statistics import median

_TOOL_COMMENTS = ("# type:", "# noqa", "#!", "# pragma")


def python_files(folder: Path) -> list[Path]:
    """Return the Python files below a folder, sorted."""
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def comments_in(source: str) -> int:
    """Return the number of comments that say something to a reader."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return sum(1 for token in tokens if token.type == tokenize.COMMENT and not token.string.startswith(_TOOL_COMMENTS))


def function_lengths(source: str) -> Iterator[int]:
    """Yield the lines of each function and method, decorators not counted, nested ones as well."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1


def figures(folder: Path) -> dict[str, str]:
    """Return the figures of the Python files below a folder, by name."""
    sources = {path: path.read_text(encoding="utf-8") for path in python_files(folder)}
    lines = {path: source.count("\n") for path, source in sources.items()}
    lengths = [length for source in sources.values() for length in function_lengths(source)]
    largest = max(lines, key=lambda path: lines[path])
    comments = sum(map(comments_in, sources.values()))
    return {
        "lines": f"{sum(lines.values()):,}",
        "files": str(len(lines)),
        "files under 60 lines": str(sum(count < 60 for count in lines.values())),
        "largest file": f"{lines[largest]} ({largest.relative_to(folder)})",
        "functions": f"{len(lengths):,}",
        "median function": f"{median(lengths):g}",
        "functions over 40 lines": str(sum(length > 40 for length in lengths)),
        "comments per 100 lines": f"{100 * comments / sum(lines.values()):.1f}",
    }


def main() -> None:
    """Print the figures of the package and of its tests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", nargs="?", type=Path, default=Path(__file__).parents[1])
    checkout = parser.parse_args().checkout
    for name in ("src/inkmill", "tests", "benchmarks"):
        print(name)
        for label, value in figures(checkout / name).items():
            print(f"  {label:24} {value}")


if __name__ == "__main__":
    main()
