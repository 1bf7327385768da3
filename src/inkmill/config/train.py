"""`train`: how the model learns."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from inkmill.config.base import Section

_SCHEDULES = {"multistep": "multistep", "autoreduce": "plateau", "onecycle": "one_cycle"}


def _schedule(value: Any) -> Any:
    """Accept TAO's spellings (MultiStep, AutoReduce)."""
    return _SCHEDULES.get(value.lower(), value) if isinstance(value, str) else value


def _as_ids(value: Any) -> Any:
    return [value] if isinstance(value, int) else value


ScheduleName = Literal["constant", "cosine", "one_cycle", "multistep", "plateau"]
Schedule = Annotated[ScheduleName, BeforeValidator(_schedule)]


class OptimSpec(Section):
    """Optimiser and learning rate."""

    name: Literal["adadelta", "adam", "adamw"] = "adadelta"
    """The optimiser."""
    lr: float | None = Field(None, gt=0)
    """Learning rate after warm-up. Where none is named: 1.0 with adadelta, 0.001 with adam and adamw."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """`beta1` for adam and adamw; ignored by adadelta, whose rho is 0.95."""
    weight_decay: float = Field(0.0, ge=0)
    """Weight decay; biases and norms are left out of it."""
    lr_scheduler: Schedule = "constant"
    """How the learning rate moves. TAO's MultiStep and AutoReduce are accepted, and here they work."""
    warmup_epochs: float = Field(0.0, ge=0)
    """Epochs (parts of one too) over which the learning rate rises from near 0."""
    lr_monitor: Literal["val_loss", "val_acc"] = "val_loss"
    """What plateau watches."""
    patience: int = Field(1, ge=0)
    """plateau: validations without progress before the rate falls."""
    min_lr: float = Field(1e-4, ge=0)
    """plateau: the rate never falls below this; cosine ends at lr * 0.01 or this, whichever is smaller."""
    lr_steps: list[int] = Field(default_factory=lambda: [15, 25])
    """multistep: epochs after which the rate falls."""
    lr_decay: float = Field(0.1, gt=0, lt=1)
    """multistep and plateau: factor of each fall."""

    @property
    def rate(self) -> float:
        """The learning rate after warm-up, named or the optimiser's own."""
        if self.lr is not None:
            return self.lr
        return 1.0 if self.name == "adadelta" else 1e-3


class CudnnSpec(Section):
    """cuDNN switches (TAO)."""

    benchmark: bool = False
    """Let cuDNN try its algorithms; pays with fixed input sizes."""
    deterministic: bool = True
    """Use deterministic kernels only."""


class TrainSpec(Section):
    """Training."""

    num_gpus: int = Field(1, ge=0)
    """GPUs of this machine to use, 0 for the CPU; without a GPU the CPU is used, which is said."""
    gpu_ids: Annotated[list[int], BeforeValidator(_as_ids)] = Field(default_factory=lambda: [0])
    """Which GPUs; if the count differs from num_gpus the larger wins."""
    num_nodes: int = Field(1, ge=1)
    """Machines; start each with torchrun."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """auto takes a GPU where there is one."""
    seed: int = Field(1234, ge=-1, lt=2**63)
    """Seed of weights, order and augmentation; -1 takes a fresh one, which is printed."""
    cudnn: CudnnSpec = Field(default_factory=CudnnSpec)
    """cuDNN switches."""
    num_epochs: int = Field(10, ge=1, le=1_000_000)
    """Passes over the training data."""
    checkpoint_interval: int = Field(1, ge=1)
    """Epochs (or steps) between checkpoints; one is also written at the end."""
    checkpoint_interval_unit: Literal["epoch", "step"] = "epoch"
    """Unit of checkpoint_interval."""
    keep_checkpoints: int = Field(3, ge=1)
    """How many of the newest checkpoints stay; older ones are deleted."""
    validation_interval: int = Field(1, ge=1)
    """Epochs between validations; one also follows the last epoch."""
    resume_training_checkpoint_path: str | None = None
    """Checkpoint to resume from; without it the newest of results_dir is used."""
    results_dir: str | None = None
    """Where results go; {results_dir}/train by default."""
    pretrained_model_path: str | None = None
    """Checkpoint or model file to fine-tune; head rows are matched by character."""
    pretrained_character_list: str | None = None
    """The characters of a pretrained_model_path of another program, in the order of its classes: without them its head
    starts from scratch. inkmill's own files hold theirs."""
    clip_grad_norm: float = Field(5.0, ge=0)
    """Largest gradient norm; 0 turns clipping off."""
    distributed_strategy: str = "ddp"
    """Lightning's strategy when there are several GPUs."""
    use_distributed_sampler: bool = False
    """TAO's switch; accepted, and without effect: ranks always see disjoint slices of one order."""
    model_ema: bool = False
    """Keep an exponential moving average of the weights and score it too."""
    ema_decay: float = Field(0.9999, gt=0, lt=1)
    """Decay of the average, reached slowly: decay * (1 - exp(-updates / 2000))."""
    optim: OptimSpec = Field(default_factory=OptimSpec)
    """Optimiser and learning rate."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Arithmetic; auto is bf16 on GPUs that have it, else fp32."""
    channels_last: bool = True
    """Memory layout that convolutions like on GPUs."""
    compile: Literal["auto"] | bool = "auto"
    """How a GPU does the step: auto captures it as a CUDA graph; true also compiles the backbone, up to a minute at the
    start for a faster step; false does neither."""
    accumulate: int = Field(1, ge=1)
    """Batches whose gradients are summed before a step."""
    early_stop: int | None = Field(None, ge=1)
    """Stop after this many validations without a better score."""
    log_every: int = Field(20, ge=1)
    """Steps between two lines in the logs."""

    @model_validator(mode="after")
    def _characters_belong_to_a_file(self) -> TrainSpec:
        if self.pretrained_character_list and not self.pretrained_model_path:
            raise ValueError("pretrained_character_list says which characters pretrained_model_path reads: give both")
        return self
