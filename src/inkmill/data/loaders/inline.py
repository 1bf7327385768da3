"""No processes, no threads: each batch is made when it is asked for. The reference for all other loaders."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from inkmill.data.loaders.assemble import BatchAssembler, CollatedBatch
from inkmill.data.loaders.base import Loader


class InlineLoader(Loader):
    """Makes batches in the caller's own thread."""

    hands_over_any_size = True

    def _produce(self, epoch: int, first: int) -> Generator[CollatedBatch, None, None]:
        maker = BatchAssembler(self.plan, self._cache, self._blocked_mask, fits=self._fits, augment_on=self.augment_on)
        for number in range(first, len(self)):
            yield maker.make(epoch, number, np.empty(self.batch_bytes, np.uint8))
