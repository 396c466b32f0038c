import json

import torch
from distributed import run_distributed
from tiny_model import adamw, build, step

from modelzoo.config import ParallelConfig
from modelzoo.runtime import connect, prepare, prepared, report


def report_of_two_ranks() -> None:
    with connect(device="cpu") as world:
        model = prepare(build(), world, ParallelConfig(zero=3))
        optimizer = adamw(model)
        clock = prepared(model).clock
        for seed in range(2):
            with clock.timed("compute"):
                step(model, optimizer, world.rank, world.world_size, seed=seed)
            clock.steps += 1
        found = report(model, optimizer)
        assert found.layout["zero"] == 3
        assert found.steps == 2
        assert set(found.seconds) == {"data", "compute", "communication", "optimizer"}
        assert found.seconds["communication"] > 0
        # an all-gather in the forward and one in the backward of each unit, one in all for the root; half of each is sent
        blocks = [unit for unit in found.units if unit.name.startswith("blocks.")]
        assert [unit.name for unit in found.units] == ["blocks.0", "blocks.1", "(rest)"]
        assert all(unit.parameters == 8 * 8 + 8 + 8 + 8 for unit in blocks)
        assert all(unit.whole_bytes == 4 * unit.parameters for unit in blocks)
        assert all(unit.parameter_bytes == unit.whole_bytes // 2 for unit in blocks)
        assert all(unit.moment_bytes >= 2 * unit.parameter_bytes for unit in blocks)
        with prepared(model).traffic.paused(), torch.no_grad():
            model(torch.zeros(1, 1, dtype=torch.long))
        assert report(model, optimizer).sent_bytes == found.sent_bytes


def test_report_counts_what_a_rank_holds_and_sends():
    run_distributed(report_of_two_ranks, 2)


def test_report_of_a_plain_model_has_a_unit_table_and_no_steps():
    found = report(build())
    assert found.steps == 0
    assert found.sent_bytes == {}
    assert "blocks.0" in str(found)
    assert json.loads(json.dumps(found.to_json()))["units"][0]["name"] == "blocks.0"
