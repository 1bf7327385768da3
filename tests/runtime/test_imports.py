"""Which packages reading needs: torch is loaded by the torch reader alone."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

import inkmill.runtime

MODULES = sorted(one.name for one in pkgutil.iter_modules(inkmill.runtime.__path__) if one.name != "torch_reader")


@pytest.mark.parametrize("module", MODULES)
def test_a_module_of_the_runtime_loads_no_torch(module: str) -> None:
    code = f"import sys, inkmill.runtime.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
