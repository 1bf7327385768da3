"""GPU kernels (Triton), each beside the torch code that is its reference."""
