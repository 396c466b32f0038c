"""Names of other tools that are no setting here, and what to do instead.

They are those of transformers' TrainingArguments and scripts, peft, trl, axolotl and LLaMA-Factory.
"""

__all__ = ["ADVICE", "advice_for"]

_COMPUTED = "padding is never computed here; remove it"
_SPEED = "kernels are PyTorch's own; remove it"
_METRICS = "metrics are exact and keep no logits; remove it"
_LOG = "every step stands in metrics.jsonl; output.log_every_s=SECONDS says how often a line is logged; remove it"
_PUSH = "use `modelzoo push RUN USER/NAME` after the run"
_LAYOUT = "use parallel.zero=0..3, parallel.ranks and parallel.tensor"
_LOADED = "batches are made where they are used; remove it"
_MODEL = "the model's folder decides; remove it, or give another model.name"

ADVICE: dict[str, str] = {
    "activation_checkpointing": "use parallel.recompute=blocks",
    "adam_beta1": "use optimizer.betas=[0.9,0.999]",
    "adam_beta2": "use optimizer.betas=[0.9,0.999]",
    "attn_implementation": f"attention is exact on real tokens alone: {_SPEED}",
    "auto_find_batch_size": "`modelzoo plan` says what fits; set train.micro_batch_size",
    "average_tokens_across_devices": "a loss is always the mean over all targets of all processes; remove it",
    "bf16": "use parallel.precision=bfloat16",
    "bias": "use adapter.method=bias to train biases alone; remove it otherwise",
    "cache_dir": "set the environment variable HF_HOME",
    "cutoff_len": "use data.max_length=TOKENS",
    "data_seed": "train.seed decides about rows, heads and dropout",
    "dataset": "use data.name=NAME, or data.train=FILE",
    "debug": "put --debug before the command to see an error's traceback",
    "deepspeed": f"{_LAYOUT} for ZeRO, and memory for what does not fit",
    "device": "a GPU is used where torch finds one; remove it",
    "disable_tqdm": "without a terminal there is no bar; remove it",
    "do_eval": "evaluation happens where there is validation data; see evaluation.every",
    "do_predict": "use `modelzoo predict RUN`",
    "do_train": "`modelzoo train` trains; remove it",
    "dtype": "use parallel.precision; trained weights are float32 always",
    "eval_accumulation_steps": _METRICS,
    "eval_batch_size": "use evaluation.batch_tokens=TOKENS of one forward",
    "eval_delay": "use evaluation.every",
    "eval_do_concat_batches": _METRICS,
    "eval_on_start": "`modelzoo eval MODEL data=FILE` judges a model that is not trained",
    "eval_use_gather_object": _METRICS,
    "fp16": "use parallel.precision=float16",
    "gradient_accumulation_steps": "train.batch_size is the batch of the whole step; train.micro_batch_size bounds one forward",
    "gradient_checkpointing": "use parallel.recompute=blocks",
    "gradient_clipping": "use train.clip_norm=1.0",
    "greater_is_better": "the metric itself says so; remove it",
    "group_by_length": _COMPUTED,
    "ignore_data_skip": "resuming seeks its place at once; remove it",
    "label_smoothing_factor": "the loss is plain cross entropy; remove it",
    "load_in_4bit": "use adapter.base=nf4 with an adapter",
    "load_in_8bit": "use adapter.base=int8 with an adapter",
    "local_rank": "torchrun, srun and parallel.ranks say it; remove it",
    "logging_dir": "use output.folder=FOLDER; a tracker's files are in the run",
    "logging_steps": "use output.log_every_s=SECONDS; every step stands in metrics.jsonl",
    "max_samples": "use data.max_rows=ROWS",
    "neftune_noise_alpha": "no noise is added to embeddings; remove it",
    "num_labels": "use data.label_names=[NAME,NAME], or leave the labels to the data",
    "optim": "the optimizer is AdamW; remove it, or use optimizer.moments=8bit for adamw_8bit",
    "output_dir": "use output.folder=FOLDER (of all runs) and output.name=NAME",
    "overwrite_output_dir": "each run has a new folder, and nothing is ever overwritten; remove it",
    "packing": "padding is never computed, so short rows cost what they hold; use train.batch_tokens=TOKENS",
    "pad_to_max_length": _COMPUTED,
    "parallelism_config": _LAYOUT,
    "per_device_eval_batch_size": "use evaluation.batch_tokens=TOKENS of one forward",
    "prediction_loss_only": _METRICS,
    "predict_with_generate": "use evaluation.max_new_tokens=TOKENS",
    "preprocessing_num_workers": "tokenizing starts no process; remove it",
    "project": "TensorBoard, wandb and trackio name a run by its folder; see output.trackers",
    "quantization_bit": "use adapter.base=int8 or nf4 with an adapter",
    "remove_unused_columns": "only the columns of the task's roles are read; see data.columns",
    "resume_from_checkpoint": "use `modelzoo resume RUN`",
    "save_only_model": "final/ holds the model alone; use checkpoint.every=null to save a state at the end only",
    "sequence_len": "use data.max_length=TOKENS",
    "skip_memory_metrics": "memory is always measured; remove it",
    "source_prefix": 'write it into data.columns.source="summarize: {document}"',
    "task_type": "use model.task",
    "text_column": "use data.columns.text_a=COLUMN, or the role that model.task names",
    "label_column": "use data.columns.label=COLUMN",
    "tf32": "set the environment variable NVIDIA_TF32_OVERRIDE",
    "tokenizer_name": "the tokenizer of the model is used; put its files into the model's folder",
    "torch_dtype": "use parallel.precision; trained weights are float32 always",
    "torch_empty_cache_steps": "use parallel.recompute or train.micro_batch_size where memory is short",
    "train_sampling_strategy": f"rows are shuffled by train.seed, and {_COMPUTED}",
    "trust_remote_code": "no code of a model or a data set is ever run; `modelzoo models` lists the families",
    "use_cache": "training needs no cache; remove it",
    "use_cpu": "set the environment variable CUDA_VISIBLE_DEVICES to nothing",
    "use_dora": "use adapter.method=dora",
    "use_flash_attention_2": f"attention is exact on real tokens alone: {_SPEED}",
    "use_liger_kernel": _SPEED,
    "use_peft": "use adapter.method=lora",
    "val_size": "give validation rows: data.validation=FILE",
}
"""Name -> what to do."""

_GROUPS: dict[str, str] = {
    "accelerator_": _LAYOUT,
    "activation_checkpointing_": "use parallel.recompute",
    "bf16_": "use parallel.precision=bfloat16",
    "dataloader_": _LOADED,
    "ddp_": _LAYOUT,
    "enable_jit_checkpoint": "SIGTERM and Ctrl-C always save; remove it",
    "fp16_": "use parallel.precision=float16",
    "fsdp": _LAYOUT,
    "gradient_checkpointing_": "use parallel.recompute",
    "hub_": _PUSH,
    "include_": _METRICS,
    "batch_eval_": _METRICS,
    "length_column_": _COMPUTED,
    "liger_": _SPEED,
    "log_": _LOG,
    "logging_": _LOG,
    "lr_scheduler_kwargs": "use schedule.warmup and schedule.final_lr_ratio",
    "optim_": "the optimizer is AdamW over everything that is trained; see `modelzoo explain optimizer`",
    "push_to_hub": _PUSH,
    "restore_callback_": "a resumed run is the same run; remove it",
    "save_on_": "a run is saved where its folder is; remove it",
    "torch_compile_": "use parallel.compile=true",
    "trackio_": "see output.trackers, and trackio's own environment variables",
    "use_fast_": _MODEL,
}
"""Beginning of a name -> what to do, for names that are not in ADVICE."""


def advice_for(name: str) -> str | None:
    """Return what to do instead of a name that other tools use; None for a name that none of them does."""
    found = ADVICE.get(name)
    return found or next((text for start, text in _GROUPS.items() if name.startswith(start)), None)
