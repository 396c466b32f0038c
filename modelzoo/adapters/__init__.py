"""A few trained values beside a frozen model: what they are, where they attach, their files in PEFT's form, and merging them."""

from modelzoo.adapters.attach import (
    adapter_of,
    add_adapter,
    initialize_adapter,
    is_adapter_name,
    low_rank_parts,
    remove_adapter,
    trained_parts,
)
from modelzoo.adapters.lora import LowRankMap, LowRankTable
from modelzoo.adapters.merge import merge_adapter
from modelzoo.adapters.peft_file import AdapterFile
from modelzoo.adapters.peft_read import attach_file, fill_from_file, is_adapter_folder, load_adapter, read_adapter
from modelzoo.adapters.peft_write import AdapterReport, save_adapter
from modelzoo.adapters.quantized import describe_base, is_quantized, planned_bytes, quantized_maps
from modelzoo.config.adapter import AdapterConfig

__all__ = [
    "AdapterConfig",
    "AdapterFile",
    "AdapterReport",
    "LowRankMap",
    "LowRankTable",
    "adapter_of",
    "add_adapter",
    "attach_file",
    "describe_base",
    "fill_from_file",
    "initialize_adapter",
    "is_adapter_folder",
    "is_adapter_name",
    "is_quantized",
    "load_adapter",
    "low_rank_parts",
    "merge_adapter",
    "planned_bytes",
    "quantized_maps",
    "read_adapter",
    "remove_adapter",
    "save_adapter",
    "trained_parts",
]
