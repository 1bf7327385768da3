"""How long `import inkmill` and `inkmill --help` take: python benchmarks/startup.py

Each is run in seven fresh processes; the best of the runs is what the software needs, the rest is the machine. It takes
ten seconds on any machine. The exit code is 1 when a limit is exceeded.
"""

from __future__ import annotations

import subprocess
import sys
import time

RUNS = 7
LIMITS_S = {"import inkmill": 0.3, "from inkmill.cli.main import main; main(['--help'])": 0.7}


def seconds(code: str) -> float:
    """Return the wall time of a fresh Python that runs `code`."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def main() -> int:
    """Measure, print, and return the exit code."""
    missed = 0
    for code, limit in LIMITS_S.items():
        times = sorted(seconds(code) for _ in range(RUNS))
        missed += times[0] > limit
        name = "inkmill --help" if "main" in code else code
        print(f"{name:16} best {times[0]:.3f} s, median {times[RUNS // 2]:.3f} s of {RUNS}; limit {limit} s")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
