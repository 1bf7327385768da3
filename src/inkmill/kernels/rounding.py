"""Rounding in GPU kernels: Triton has none that its interpreter knows too."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def nearest(value):  # type: ignore[no-untyped-def]
    """Return the nearest whole number to a number below 2**22, of two the even one."""
    value = value.to(tl.float32)
    return (value + 12582912.0) - 12582912.0  # 1.5 * 2**23: sums there have no fraction left
