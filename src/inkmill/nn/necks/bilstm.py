"""The sequence stage: bidirectional LSTMs over the time steps (Graves et al. 2009; CRNN, Shi et al. 2015)."""

from __future__ import annotations

from torch import Tensor, nn

from inkmill.nn.init import initialise


class BiLSTM(nn.Module):
    """One LSTM in both directions and a linear layer that joins them: (B, T, in_channels) to (B, T, hidden)."""

    def __init__(self, in_channels: int, hidden: int) -> None:
        super().__init__()
        self.rnn = nn.LSTM(in_channels, hidden, bidirectional=True, batch_first=True)
        self.linear = nn.Linear(2 * hidden, hidden)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, in_channels) to (B, T, hidden)."""
        out: Tensor = self.linear(self.rnn(x)[0])
        return out


def bilstm_stack(in_channels: int, hidden: int, layers: int) -> nn.Sequential:
    """Return `layers` BiLSTMs one after the other."""
    return nn.Sequential(*(BiLSTM(in_channels if n == 0 else hidden, hidden) for n in range(layers)))
