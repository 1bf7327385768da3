"""How new weights start, by kind of layer, and nothing else touched.

Convolutions: Kaiming normal, fan-out (He et al. 2015). LSTMs: orthogonal recurrent and Xavier input weights, biases
zero but for a forget gate of 1 (Jozefowicz et al. 2015). Linear layers: truncated normal 0.02. Norms, layer scales and
learned positions keep what their own class gave them: a rule over every "*weight" would wipe those out.
"""

from __future__ import annotations

from torch import Tensor, nn


def initialise(module: nn.Module) -> None:
    """Start every convolution, linear layer and LSTM inside `module`; leave every other parameter as it is."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
            _zero(part.bias)
        elif isinstance(part, nn.Linear):
            nn.init.trunc_normal_(part.weight, std=0.02)
            _zero(part.bias)
        elif isinstance(part, (nn.LSTM, nn.LSTMCell)):
            _initialise_lstm(part)


def _zero(bias: Tensor | None) -> None:
    if bias is not None:
        nn.init.zeros_(bias)


def _initialise_lstm(lstm: nn.LSTM | nn.LSTMCell) -> None:
    hidden = lstm.hidden_size
    for name, parameter in lstm.named_parameters():
        if name.startswith("weight_ih"):
            nn.init.xavier_uniform_(parameter)
        elif name.startswith("weight_hh"):
            for gate in parameter.data.view(4, hidden, -1):  # each gate is a matrix of its own
                nn.init.orthogonal_(gate)
        else:
            nn.init.zeros_(parameter)
            if name.startswith("bias_ih"):  # one of the two biases only: they add up
                parameter.data[hidden : 2 * hidden] = 1.0
