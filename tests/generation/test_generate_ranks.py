"""On several ranks a sharded model writes what it writes on one, and all ranks stop together."""

import pytest
import torch
from distributed import run_distributed
from tiny_writers import folder, theirs

from modelzoo import from_pretrained, generate
from modelzoo.errors import ConfigError, RankError
from modelzoo.runtime import connect, prepare

PROMPTS = [[[9, 5, 7]], [[4, 8], [6, 3, 12, 30]]]


def loaded(path):
    return from_pretrained(path, local_files_only=True)


def write_sharded(path) -> None:
    alone = loaded(path)
    free = generate(alone, PROMPTS[0], max_new_tokens=12, eos_token_id=()).new_ids[0]
    with connect(device="cpu") as world:
        model = prepare(loaded(path), world)
        prompts = PROMPTS[world.rank]
        for options in ({"eos_token_id": free[2]}, {"do_sample": True, "seed": 4}, {"num_beams": 2, "eos_token_id": free[2]}):
            expected = generate(alone, prompts, max_new_tokens=12, **options)
            found = generate(model, prompts, max_new_tokens=12, **options)
            assert found.new_ids == expected.new_ids
            assert torch.equal(found.sequences, expected.sequences)


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_sharded_ranks_write_the_same_and_stop_together(name):
    theirs(name)
    run_distributed(write_sharded, 2, folder(name))


def count_steps(path) -> None:
    model, calls = loaded(path), []
    first = generate(model, PROMPTS[0], max_new_tokens=1, eos_token_id=()).new_ids[0][0]
    decode = model.decode
    model.decode = lambda ids, state: calls.append(len(ids)) or decode(ids, state)
    with connect(device="cpu") as world:
        ends = first if world.rank == 0 else ()
        found = generate(model, PROMPTS[0], max_new_tokens=9, eos_token_id=ends, is_synced=True)
        assert len(calls) == 8, "a rank that has ended goes on with the others"
        assert len(found.new_ids[0]) == (1 if world.rank == 0 else 9)
        calls.clear()
        generate(model, PROMPTS[0], max_new_tokens=9, eos_token_id=ends)
        assert len(calls) == (0 if world.rank == 0 else 8), "copies of a model write for themselves"


def test_a_rank_that_has_ended_goes_on_with_the_others():
    theirs("gpt2")
    run_distributed(count_steps, 2, folder("gpt2"))


def refuse_together(path) -> None:
    with connect(device="cpu") as world:
        model = prepare(loaded(path), world)
        kind, message = (
            (ValueError, r"prompt 0: the list has no token") if world.rank else (RankError, r"rank 1 cannot generate, .* no token")
        )
        with pytest.raises(kind, match=message):
            generate(model, [[]] if world.rank else [[3]])
        with pytest.raises(ConfigError, match=r"max_new_tokens must be the same on all ranks, found \[5, 6\]"):
            generate(model, [[3]], max_new_tokens=5 + world.rank)
        with pytest.raises(ConfigError, match=r"is_synced=False: a sharded model needs all ranks"):
            generate(model, [[3]], is_synced=False)
        assert len(generate(model, [[3]], eos_token_id=()).new_ids[0]) == 20


def test_what_one_rank_refuses_no_rank_begins():
    theirs("gpt2")
    run_distributed(refuse_together, 2, folder("gpt2"))
