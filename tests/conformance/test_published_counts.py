"""The published checkpoints of each family's row have the numbers of parameters that their authors, or the hub, state."""

import json

import pytest
from harness import counted, row
from measure import FACTS

from modelzoo.models.auto import FAMILIES

# As the hub counts each file's tensors, or as the papers' code does; without what a task's head adds to an encoder.
STATED = {
    "bert-base-uncased": 109_482_240,
    "bert-large-uncased": 335_141_888,
    "bert-base-chinese": 102_267_648,
    "roberta-base": 124_645_632,
    "roberta-large": 355_359_744,
    "xlm-roberta-base": 278_043_648,
    "xlm-roberta-large": 559_890_432,
    "distilbert-base-uncased": 66_362_880,
    "electra-base-discriminator": 108_891_648,
    "electra-large-discriminator": 334_092_288,
    "ModernBERT-base": 149_014_272,
    "longformer-base-4096": 148_659_456,
    "vit-base-patch16-224": 86_389_248,
    "dinov2-small": 22_056_576,
    "dinov2-base": 86_580_480,
    "dinov2-large": 304_368_640,
    "dinov2-giant": 1_136_480_768,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "gpt-j-6b": 6_050_882_784,
    "opt-125m": 125_239_296,
    "opt-350m": 331_196_416,
    "opt-1.3b": 1_315_758_080,
    "opt-6.7b": 6_658_473_984,
    "Llama-2-7b": 6_738_415_616,
    "Llama-2-13b": 13_015_864_320,
    "Llama-2-70b": 68_976_648_192,
    "Llama-3.1-8B": 8_030_261_248,
    "Llama-3.1-70B": 70_553_706_496,
    "Llama-3.2-1B": 1_235_814_400,
    "Llama-3.2-3B": 3_212_749_824,
    "SmolLM2-135M": 134_515_008,
    "Mistral-7B-v0.1": 7_241_732_096,
    "Mixtral-8x7B-v0.1": 46_702_792_704,
    "Mixtral-8x22B-v0.1": 140_620_634_112,
    "Qwen2.5-0.5B": 494_032_768,
    "Qwen2.5-1.5B": 1_543_714_304,
    "Qwen2.5-7B": 7_615_616_512,
    "Qwen2.5-72B": 72_706_203_648,
    "Qwen1.5-MoE-A2.7B": 14_315_784_192,
    "Qwen3-0.6B": 596_049_920,
    "Qwen3-8B": 8_190_735_360,
    "Qwen3-32B": 32_762_123_264,
    "MiniCPM-2B": 2_724_880_896,
    "t5-small": 60_506_624,
    "t5-base": 222_903_552,
    "t5-large": 737_668_096,
    "t5-3b": 2_851_598_336,
    "t5-11b": 11_307_321_344,
    "flan-t5-small": 76_961_152,
    "flan-t5-base": 247_577_856,
    "flan-t5-large": 783_150_080,
    "flan-t5-xl": 2_849_757_184,
    "flan-t5-xxl": 11_135_332_352,
    "mt5-small": 300_176_768,
    "mt5-base": 582_401_280,
    "mt5-large": 1_229_581_312,
    "mt5-xl": 3_742_619_648,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_familys_published_sizes_are_those_stated_and_those_shown(family: str) -> None:
    sizes = {name: counted(family, config) for name, config in row(family)["published"].items()}
    assert {name: count for name, count in sizes.items() if name in STATED and count != STATED[name]} == {}
    assert json.loads(FACTS.read_text())["families"][family]["sizes"] == sizes, "run python tests/conformance/measure.py"


def test_every_stated_number_is_compared() -> None:
    assert set(STATED) <= {name for family in FAMILIES for name in row(family)["published"]}
