"""Processes, sharding and training checkpoints, for any `torch.nn.Module`; knows no model and no layer."""

from modelzoo.runtime.agreement import agree, failing_together, mark_agreed, raise_together
from modelzoo.runtime.checkpoints.checkpoint import Identity, load_checkpoint, load_model, save_checkpoint
from modelzoo.runtime.checkpoints.manifest import read_manifest
from modelzoo.runtime.checkpoints.publish import check_space, readable_size, sweep
from modelzoo.runtime.checkpoints.reading import read_state
from modelzoo.runtime.checkpoints.retention import Found, find_latest, retain, set_aside, step_folders
from modelzoo.runtime.checkpoints.saver import CheckpointSaver
from modelzoo.runtime.checkpoints.state import full_state, load_full_state, load_optimizer_state, model_tensors, optimizer_tensors
from modelzoo.runtime.exchange.traffic import Traffic
from modelzoo.runtime.gradients import clip_grad_norm
from modelzoo.runtime.layout import layout
from modelzoo.runtime.prepare import Prepared, accumulating, materialise, prepare, prepared, reshard
from modelzoo.runtime.process import World, connect
from modelzoo.runtime.random_state import collect_random_state, restore_random_state, seed_everything
from modelzoo.runtime.report import Report, report
from modelzoo.runtime.units import find_units
from modelzoo.sharded import full_tensor, local_values

__all__ = [
    "CheckpointSaver",
    "Found",
    "Identity",
    "Prepared",
    "Report",
    "Traffic",
    "World",
    "accumulating",
    "agree",
    "check_space",
    "clip_grad_norm",
    "collect_random_state",
    "connect",
    "failing_together",
    "find_latest",
    "find_units",
    "full_state",
    "full_tensor",
    "layout",
    "load_checkpoint",
    "load_full_state",
    "load_model",
    "load_optimizer_state",
    "local_values",
    "mark_agreed",
    "materialise",
    "model_tensors",
    "optimizer_tensors",
    "prepare",
    "prepared",
    "raise_together",
    "read_manifest",
    "read_state",
    "readable_size",
    "report",
    "reshard",
    "restore_random_state",
    "retain",
    "save_checkpoint",
    "seed_everything",
    "set_aside",
    "step_folders",
    "sweep",
]
