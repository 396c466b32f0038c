"""The settings of a run: every key that a recipe may hold, with its meaning, unit, range and default.

The text under a field is what `modelzoo explain` shows. A recipe is YAML of this form; `modelzoo.config.load` reads it.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from modelzoo.config.adapter import AdapterConfig
from modelzoo.config.keys import Key
from modelzoo.config.memory import MemoryConfig
from modelzoo.config.optimizer import OptimizerSettings
from modelzoo.config.output import OutputSettings
from modelzoo.config.parallel import ParallelConfig
from modelzoo.config.period import PERIOD_EXPECTS, check_period
from modelzoo.config.section import Section

__all__ = [
    "METRICS",
    "CheckpointSettings",
    "DataSettings",
    "EvaluationSettings",
    "ModelSettings",
    "OptimizerSettings",
    "OutputSettings",
    "RunSettings",
    "RuntimeSettings",
    "ScheduleSettings",
    "TrainSettings",
    "TrainingTask",
    "Truncation",
]

TrainingTask = Literal[
    "classification", "token_classification", "question_answering", "multiple_choice", "masked_lm", "causal_lm", "seq2seq_lm"
]
DataForm = Literal[
    "superglue/boolq",
    "superglue/cb",
    "superglue/copa",
    "superglue/multirc",
    "superglue/record",
    "superglue/rte",
    "superglue/wic",
    "superglue/wsc",
    "lcqmc",
]
Truncation = Literal["longest_first", "only_first", "only_second", "error"]

METRICS: dict[str, tuple[str, ...]] = {
    "classification": ("accuracy", "f1", "mcc", "loss"),
    "token_classification": ("f1", "accuracy", "loss"),
    "question_answering": ("f1", "exact_match", "loss"),
    "multiple_choice": ("accuracy", "f1", "exact_match", "loss"),
    "masked_lm": ("loss", "perplexity", "accuracy"),
    "causal_lm": ("loss", "perplexity", "accuracy", "exact_match", "f1"),
    "seq2seq_lm": ("loss", "perplexity", "accuracy", "exact_match", "f1"),
}
"""The metrics of each task; the first is the one that `evaluation.metric: null` means."""

WRITING_TASKS = ("causal_lm", "seq2seq_lm")
"""Tasks whose model writes text."""
WRITTEN_METRICS = ("exact_match", "f1")
"""Their metrics that compare what it writes."""
_OF_TASKS: dict[tuple[str, str], tuple[str, ...]] = {
    ("evaluation", "max_new_tokens"): WRITING_TASKS,
    ("data", "template"): ("causal_lm",),
    ("data", "max_target_length"): ("seq2seq_lm",),
}

Period = Annotated[int | str | None, AfterValidator(check_period)]


def _check_warmup(value: float) -> float:
    """Return a fraction below 1 as it is and a whole number of steps as an integer."""
    if value < 0 or (value >= 1 and value != int(value)):
        raise ValueError(f"expected a fraction of the run >= 0 and < 1, or a whole number of steps; found {value!r}")
    return int(value) if value >= 1 or value == 0 else value


class ModelSettings(Section):
    """Where the model comes from and what it becomes."""

    name: Annotated[str, Field(min_length=1), Key("", ("model_name_or_path", "model_name"))]
    """Hub id (bert-base-uncased) or a folder in Hugging Face's form; ./path in a recipe is beside that recipe."""
    revision: Annotated[str | None, Key("", ("model_revision",))] = None
    """Branch, tag or commit on the hub; null is the main branch."""
    task: TrainingTask = "classification"
    """What the head on top of the model does."""
    dropout: Annotated[float | None, Field(ge=0, lt=1), Key("probability", ("hidden_dropout_prob",))] = None
    """Dropout of hidden states, attention and classifier; null keeps what the model's config says."""
    allow_pickle: bool = False
    """Whether a pytorch_model.bin may be read where there is no safetensors file; only for files you trust."""


class DataSettings(Section):
    """Which rows are read and how they become tokens."""

    name: Annotated[str | None, Key("", ("dataset_name",))] = None
    """Data set on the hub (super_glue/boolq), or a folder with train, validation and test files."""
    train: Annotated[str | None, Key("", ("train_file",))] = None
    """Training rows: a .jsonl, .json, .csv, .tsv, .parquet, .conll or .txt file (one text); in place of data.name."""
    validation: Annotated[str | None, Key("", ("validation_file",))] = None
    """Validation rows, in the same forms; without them nothing is evaluated during training."""
    test: Annotated[str | None, Key("", ("test_file",))] = None
    """Test rows, in the same forms; evaluated once, at the end, with the kept weights."""
    form: DataForm | None = None
    """Published form that the rows have; they become rows of model.task. Null finds the columns by their names."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Which column plays which role ({text_a: question, label: answer}); "summarize: {document}" fills a text from columns."""
    label_names: Annotated[list[str] | None, Field(min_length=1)] = None
    """Names of the labels in the order of their ids; null takes them from the data and the model's config."""
    max_length: Annotated[int, Field(ge=4, le=1_048_576), Key("tokens", ("max_seq_length", "max_seq_len"))] = 512
    """Longest sequence, special tokens included; longer ones are cut as data.truncation says."""
    max_target_length: Annotated[int | None, Field(ge=4, le=1_048_576), Key("tokens")] = None
    """Longest target of an encoder-decoder, end token included; null is data.max_length."""
    template: Annotated[Literal["alpaca", "plain", "chatml"] | None, Key("", ("chat_template",))] = None
    """Chat template for chats and instructions, stored with the result; null is the tokenizer's own."""
    truncation: Truncation = "longest_first"
    """Which text of a pair is cut: only_second keeps the question whole, error refuses any row that is too long."""
    max_rows: Annotated[int | None, Field(ge=1), Key("rows", ("max_train_samples",))] = None
    """Rows read from each split, from its beginning, for a quick try; null reads all."""


class TrainSettings(Section):
    """How long and in which portions the model is trained."""

    epochs: Annotated[float, Field(gt=0, le=100_000), Key("epochs", ("num_train_epochs", "num_epochs"))] = 3.0
    """Passes over the training rows; fractions are allowed."""
    max_steps: Annotated[int | None, Field(ge=1), Key("steps", ("max_train_steps",))] = None
    """Upper limit of optimizer steps; the shorter of this and train.epochs ends the run."""
    batch_size: Annotated[int | None, Field(ge=1), Key("rows", ("per_device_train_batch_size", "train_batch_size"))] = 32
    """Rows of one optimizer step over all processes, so that results do not depend on how many there are."""
    batch_tokens: Annotated[int | None, Field(ge=1), Key("tokens")] = None
    """Real tokens of one optimizer step over all processes, in place of train.batch_size."""
    micro_batch_size: Annotated[int | None, Field(ge=1), Key("rows")] = None
    """Most rows of one forward on one process (gradients accumulate exactly); null is the process's whole share."""
    clip_norm: Annotated[float | None, Field(gt=0), Key("gradient norm", ("max_grad_norm",))] = 1.0
    """Global gradient norm above which gradients are scaled down; null never scales."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 42
    """Seed of new heads, dropout and the order of the rows."""

    @model_validator(mode="before")
    @classmethod
    def _tokens_replace_rows(cls, values: Any) -> Any:
        """Let batch_tokens alone take the place of the default batch_size."""
        if isinstance(values, dict) and values.get("batch_tokens") is not None and "batch_size" not in values:
            return {**values, "batch_size": None}
        return values

    @model_validator(mode="after")
    def _one_batch_form(self) -> "TrainSettings":
        if self.batch_size is not None and self.batch_tokens is not None:
            raise ValueError(
                f"batch_size={self.batch_size} and batch_tokens={self.batch_tokens} exclude each other; "
                "add train.batch_size=null or train.batch_tokens=null"
            )
        if self.batch_size is None and self.batch_tokens is None:
            raise ValueError("batch_size and batch_tokens are both null; set one of them")
        return self


class ScheduleSettings(Section):
    """The learning rate as a function of the step."""

    name: Annotated[Literal["linear", "cosine", "constant", "noam"], Key("", ("lr_scheduler_type",))] = "linear"
    """Shape after the warmup; noam is the inverse square root of the step."""
    warmup: Annotated[
        float,
        AfterValidator(_check_warmup),
        Key("fraction of the run, or steps", ("warmup_ratio", "warmup_steps"), "a fraction >= 0 and < 1, or whole steps"),
    ] = 0
    """Linear rise from 0: below 1 a fraction of all steps, from 1 on a number of steps."""
    final_lr_ratio: Annotated[float, Field(ge=0, le=1), Key("of the peak")] = 0.0
    """What is left of the peak learning rate at the end of linear and cosine."""


class EvaluationSettings(Section):
    """When and by what the model is judged."""

    every: Annotated[Period, Key("steps or epochs", ("eval_steps",), PERIOD_EXPECTS)] = "1ep"
    """How often the validation rows are evaluated; the end of the run always is."""
    metric: Annotated[
        Literal["accuracy", "f1", "mcc", "exact_match", "perplexity", "loss"] | None, Key("", ("metric_for_best_model",))
    ] = None
    """Which metric decides about the best weights; null is the task's own (accuracy for classification)."""
    max_new_tokens: Annotated[int | None, Field(ge=1), Key("tokens", ("generation_max_length",))] = None
    """Most tokens that a language model writes for each row to be compared with its target (exact_match, f1); null writes none."""
    batch_tokens: Annotated[int, Field(ge=1), Key("tokens")] = 8192
    """Most real tokens of one evaluation forward on one process."""


class CheckpointSettings(Section):
    """What is kept for `modelzoo resume` and as the result."""

    every: Annotated[Period, Key("steps or epochs", ("save_steps",), PERIOD_EXPECTS)] = "1ep"
    """How often the whole training state is saved; null only at the end."""
    keep_last: Annotated[int, Field(ge=1), Key("checkpoints", ("save_total_limit",))] = 2
    """How many of the newest training states stay on disk; two even for 1, should the newest be damaged later."""
    keep_best: Annotated[bool, Key("", ("load_best_model_at_end",))] = True
    """Whether final/ holds the weights of the best evaluation; false takes those of the last step."""
    background: Annotated[bool, Key("", ("async_save",))] = False
    """Whether a copy of the state is written while training goes on; takes memory for what this process saves."""


class RuntimeSettings(Section):
    """How the processes work."""

    threads: Annotated[int | None, Field(ge=1), Key("threads")] = None
    """CPU threads of each process; null divides the cores among the processes of the machine."""
    deterministic: Annotated[bool, Key("", ("full_determinism",))] = False
    """Whether torch refuses operations that may differ between two equal runs."""


class RunSettings(Section):
    """All settings of one run."""

    recipe: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$"), Key("", (), "a plain file name")]
    """Name of the recipe; the file's name where the file does not say it."""
    description: str = ""
    """One line for `modelzoo recipes`."""
    model: ModelSettings
    data: DataSettings = DataSettings()
    train: TrainSettings = TrainSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    output: OutputSettings = OutputSettings()
    parallel: ParallelConfig = ParallelConfig()
    memory: MemoryConfig = MemoryConfig()
    runtime: RuntimeSettings = RuntimeSettings()
    adapter: AdapterConfig = AdapterConfig()

    @model_validator(mode="after")
    def _sections_agree(self) -> "RunSettings":
        if self.data.name is None and self.data.train is None:
            raise ValueError("data.name and data.train are both missing; name a data set or a file of training rows")
        known = METRICS[self.model.task]
        if self.evaluation.metric is not None and self.evaluation.metric not in known:
            raise ValueError(
                f"evaluation.metric={self.evaluation.metric} is not a metric of model.task={self.model.task}; "
                f"use {' or '.join(known)}"
            )
        writes = self.model.task in WRITING_TASKS
        has_choices = self.data.form is not None or "choices" in self.data.columns
        if writes and self.metric in WRITTEN_METRICS and self.evaluation.max_new_tokens is None and not has_choices:
            raise ValueError(
                f"evaluation.metric={self.metric} compares texts that the model writes; add evaluation.max_new_tokens=TOKENS"
            )
        if self.data.form is not None and self.data.columns:
            raise ValueError(f"data.columns has no effect with data.form={self.data.form}, whose columns are known; leave one out")
        for (section, key), tasks in _OF_TASKS.items():
            value = getattr(getattr(self, section), key)
            if value is not None and self.model.task not in tasks:
                raise ValueError(f"{section}.{key}={value} has no effect with model.task={self.model.task}; leave it out")
        return self

    @model_validator(mode="after")
    def _base_is_whole(self) -> "RunSettings":
        others = (("parallel.tensor", self.parallel.tensor > 1), ("parallel.compile", self.parallel.compile))
        self.adapter.check_base(name for name, is_used in (*others, ("memory", self.memory.is_used)) if is_used)
        return self

    @model_validator(mode="after")
    def _moments_fit(self) -> "RunSettings":
        taken = {"memory": self.memory.is_used, f"parallel.tensor={self.parallel.tensor}": self.parallel.tensor > 1}
        if self.optimizer.moments == "8bit" and any(taken.values()):
            found = " and ".join(name for name, is_used in taken.items() if is_used)
            raise ValueError(f"optimizer.moments=8bit works without tiers and on whole rows, found {found}; use one of the two")
        return self

    @model_validator(mode="after")
    def _update_fits_the_step(self) -> "RunSettings":
        if self.memory.is_used and self.memory.optimizer_update == "in_backward":
            if self.train.clip_norm is not None:
                raise ValueError(
                    f"memory.optimizer_update=in_backward updates before the norm of all gradients is known, found "
                    f"train.clip_norm={self.train.clip_norm:g}; add train.clip_norm=null, or use memory.optimizer_update=deferred"
                )
            if self.train.micro_batch_size is not None:
                raise ValueError(
                    f"memory.optimizer_update=in_backward takes a step in every backward, found train.micro_batch_size="
                    f"{self.train.micro_batch_size}; add train.micro_batch_size=null, or use memory.optimizer_update=deferred"
                )
            if self.parallel.precision == "float16":
                raise ValueError(
                    "memory.optimizer_update=in_backward cannot take back a step whose float16 gradients overflowed; use "
                    "parallel.precision=bfloat16, or memory.optimizer_update=deferred"
                )
        return self

    @property
    def metric(self) -> str:
        """The metric that decides about the best weights: evaluation.metric, or the task's own."""
        return self.evaluation.metric or METRICS[self.model.task][0]
