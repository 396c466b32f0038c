"""On every layout a model writes what it writes on one process."""

import pytest
from distributed import run_distributed
from tiny_writers import folder, theirs

from modelzoo import from_pretrained, generate
from modelzoo.config.parallel import ParallelConfig
from modelzoo.runtime import connect, layout

PROMPTS = [[[9, 5, 7]], [[4, 8], [6, 3, 12, 30]]]
LAYOUTS = [*({"zero": zero} for zero in range(4)), {"tensor": 2}]


def write_everywhere(paths: list[str], layouts: list[dict[str, int]]) -> None:
    with connect(device="cpu") as world:
        for path in paths:
            alone = from_pretrained(path)
            for options in layouts:
                model = from_pretrained(path, lay_out=layout(world, ParallelConfig(**options)))
                prompts = PROMPTS[world.data_rank % 2]
                for more in ({"eos_token_id": ()}, {"num_beams": 2}, {"do_sample": True, "seed": 4}):
                    expected = generate(alone, prompts, max_new_tokens=8, **more)
                    assert generate(model, prompts, max_new_tokens=8, **more).new_ids == expected.new_ids, (path, options, more)
                world.tensor_size = 1


def test_every_layout_writes_the_same():
    names = ["gpt2", "llama", "t5"]
    for name in names:
        theirs(name)
    run_distributed(write_everywhere, 2, [folder(name) for name in names], LAYOUTS)


@pytest.mark.slow
def test_both_axes_write_the_same():
    theirs("llama")
    run_distributed(write_everywhere, 4, [folder("llama")], [{"zero": 3, "tensor": 2}, {"zero": 2, "data_replicate": 2}])
