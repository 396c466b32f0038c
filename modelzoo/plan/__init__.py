"""What a run will take before it starts: memory by tier, bytes moved, time, and other settings that fit."""

from modelzoo.plan.alternatives import Alternative, find_alternatives
from modelzoo.plan.machine import KNOWN, Machine, find_machine, parse_amount
from modelzoo.plan.parts import ModelParts, read_parts
from modelzoo.plan.plan import Plan, plan_run, plan_workload
from modelzoo.plan.probe import probe, probe_products
from modelzoo.plan.skeleton import skeleton
from modelzoo.plan.text import explain_line, plan_text
from modelzoo.plan.training import TrainingPlan, plan_training
from modelzoo.plan.workload import Workload

__all__ = [
    "KNOWN",
    "Alternative",
    "Machine",
    "ModelParts",
    "Plan",
    "TrainingPlan",
    "Workload",
    "explain_line",
    "find_alternatives",
    "find_machine",
    "parse_amount",
    "plan_run",
    "plan_text",
    "plan_training",
    "plan_workload",
    "probe",
    "probe_products",
    "read_parts",
    "skeleton",
]
