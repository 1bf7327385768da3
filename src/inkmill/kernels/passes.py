"""The passes over a batch's pixels as GPU kernels."""

from inkmill.kernels.blur import blur
from inkmill.kernels.finish import finish
from inkmill.kernels.shade import shade
from inkmill.kernels.warp import warp

__all__ = ["blur", "finish", "shade", "warp"]
