"""The passes over a batch's pixels as GPU kernels."""

from inkmill.data.augment.blur_triton import blur
from inkmill.data.augment.finish_triton import finish
from inkmill.data.augment.shade_triton import shade
from inkmill.data.augment.warp_triton import warp

__all__ = ["blur", "finish", "shade", "warp"]
