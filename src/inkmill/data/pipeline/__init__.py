"""Everything deterministic between a file and a batch: order, decode, resize, cache, targets."""
