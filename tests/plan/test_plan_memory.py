"""The lines of a plan: states by ZeRO level, the peak's moment, tiers, traffic and time, against formulas written naively."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from modelzoo.config import MemoryConfig, ParallelConfig, RunSettings
from modelzoo.errors import ConfigError
from modelzoo.layers import skip_initialization
from modelzoo.models.bert import Bert, BertConfig
from modelzoo.models.gpt2 import GPT2, GPT2Config
from modelzoo.plan import KNOWN, Machine, ModelParts, Plan, Workload, find_alternatives, find_machine, plan_run, plan_workload
from modelzoo.plan import read_parts as read
from modelzoo.plan.workload import workload_of

HOST = Machine(
    name="host", kind="host", host_memory=4 * 2**30, flops={"float32": 1e11, "bfloat16": 1e9, "float16": 1e9}, attention_flops=5e10,
    memory_bandwidth=1e10, link_bandwidth=1e9, disk_read=1e9, disk_write=5e8, program_bytes=2**28, context_bytes=0, overlaps=False,
)  # fmt: skip


def bert(layers: int = 4, hidden: int = 64) -> ModelParts:
    config = BertConfig(
        vocab_size=200, hidden_size=hidden, num_layers=layers, num_heads=4, intermediate_size=4 * hidden, max_positions=128,
        type_vocab_size=2,
    )  # fmt: skip
    with torch.device("meta"), skip_initialization():
        return read(Bert(config, "classification"))


def gpt(layers: int, hidden: int) -> ModelParts:
    config = GPT2Config(
        vocab_size=50257,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=hidden // 64,
        intermediate_size=4 * hidden,
        max_positions=1024,
    )
    with torch.device("meta"), skip_initialization():
        return read(GPT2(config, "classification"))


def sizes(plan: Plan) -> dict[str, int]:
    return {line.name: line.size_bytes for line in plan.memory.tiers[plan.machine.tier]}


def settings(**sections: object) -> RunSettings:
    base: dict[str, object] = {
        "recipe": "tried",
        "model": {"name": "somewhere"},
        "data": {"train": "rows.jsonl", "max_length": 128},
    }
    return RunSettings.model_validate(base | sections)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_states_are_cut_by_the_level(zero: int) -> None:
    ranks, model = 4, bert()
    layout = ParallelConfig(zero=zero, data_shard=1 if zero == 0 else ranks, data_replicate=ranks if zero == 0 else 1)
    lines = sizes(plan_workload(model, Workload(lengths=(8,), micro_batches=2), layout, HOST, ranks=ranks))
    parts = 1 if zero == 0 else ranks
    assert lines["parameters"] == pytest.approx(4 * model.numel / parts, rel=0.02)  # rows that make shards equal
    assert lines["moments"] == 2 * lines["parameters"]
    # below level 2 accumulated gradients are whole
    assert lines["gradients"] == pytest.approx(4 * model.numel / (parts if zero > 1 else 1), rel=0.02)
    block = model.blocks[0].numel
    copies = 3 * block + model.units[-1].numel if zero == 3 else model.numel
    assert lines["working copies"] == 4 * copies


def test_one_plain_process_has_no_working_copies() -> None:
    plan = plan_workload(bert(), Workload(lengths=(8,)), ParallelConfig(data_shard=1, zero=0), HOST)
    assert "working copies" not in sizes(plan)
    assert plan.traffic.sent == 0
    assert sizes(plan)["program"] == HOST.program_bytes


def test_the_peak_is_in_the_loss_of_a_language_model_and_in_the_backward_of_a_classifier() -> None:
    layout, work = ParallelConfig(data_shard=1, zero=0), Workload(lengths=(128,) * 8)
    assert "backward" in plan_workload(bert(), work, layout, HOST).memory.peak_moment
    with torch.device("meta"), skip_initialization():
        model = read(
            GPT2(GPT2Config(vocab_size=5000, hidden_size=64, num_layers=2, num_heads=4, intermediate_size=256), "causal_lm")
        )
    assert plan_workload(model, work, layout, HOST).memory.peak_moment == "the loss"
    evaluated = plan_workload(model, Workload(lengths=(8,)), layout, HOST, evaluation_tokens=8192)
    assert evaluated.memory.peak_moment == "the evaluation"
    assert sizes(evaluated)["logits"] == 8192 * 5000 * 12


def test_lines_add_up_to_the_peak() -> None:
    plan = plan_workload(bert(), Workload(lengths=(64,) * 4), ParallelConfig(data_shard=1, zero=0), HOST)
    assert plan.peak_bytes == sum(sizes(plan).values()) == plan.to_json()["tiers"]["host"]["peak_bytes"]


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_traffic_is_that_of_the_rings(zero: int) -> None:
    ranks, count, model = 4, 3, bert()
    work = Workload(lengths=(8,), micro_batches=count)
    plan = plan_workload(model, work, ParallelConfig(zero=zero, data_shard=ranks), HOST, ranks=ranks)
    padded = {
        unit.name: sum(math.ceil(shape[0] / ranks) * ranks * math.prod(shape[1:]) for shape in unit.shapes) for unit in model.units
    }
    rest = padded.pop("(rest)")
    blocks = sum(padded.values())
    gathered = count * (2 * blocks + rest) if zero == 3 else blocks + rest
    reduced = (blocks + rest) * (1 if zero == 1 else count)
    assert plan.traffic.between_ranks == {"gather": 4 * gathered * 3 // 4, "reduce": 4 * reduced * 3 // 4}


def test_compute_is_six_operations_a_parameter_and_token() -> None:
    model, tokens = gpt(4, 512), 1024
    work = Workload(lengths=(tokens,), is_host=False)
    plan = plan_workload(model, work, ParallelConfig(data_shard=1, zero=0), KNOWN["a100-80gb"])
    products = plan.time.seconds["compute"] * KNOWN["a100-80gb"].flops["float32"]
    blocks = sum(unit.numel for unit in model.blocks[:-1])  # of the last one a classifier computes one token alone
    keys = 2 * 512 * 512
    assert products == pytest.approx(6 * tokens * (blocks + keys), rel=0.01)
    again = plan_workload(
        model,
        Workload(lengths=(tokens,), is_host=False, recompute="blocks"),
        ParallelConfig(data_shard=1, zero=0),
        KNOWN["a100-80gb"],
    )
    assert again.time.seconds["compute"] == pytest.approx(plan.time.seconds["compute"] * 8 / 6, rel=0.01)


def test_a_budget_sends_values_to_disk_and_its_traffic_bounds_the_step(tmp_path: Path) -> None:
    model = gpt(8, 512)
    memory = {"host": "820MiB", "disk": {"path": str(tmp_path)}}
    plan = plan_run(settings(memory=memory, train={"batch_size": 1}), model, HOST)
    assert plan.fits
    assert plan.peak_bytes <= 820 * 2**20
    assert plan.memory.peak("disk") > 0
    placement = plan.memory.placement
    assert placement is not None
    assert plan.traffic.disk_read + plan.traffic.disk_written == pytest.approx(placement.moved_bytes, rel=0.1)
    assert plan.time.bound == "disk"
    alone = plan.traffic.disk_read / 1e9 + plan.traffic.disk_written / 5e8
    assert plan.time.seconds["disk"] == pytest.approx(alone)
    # every phase waits for its first unit
    assert alone < plan.time.step < 1.5 * alone
    assert 0 < plan.time.stall < plan.time.step


def test_a_budget_that_is_too_small_says_the_smallest_that_is_not(tmp_path: Path) -> None:
    model, wanted = gpt(8, 512), settings(memory={"host": "300MiB", "disk": {"path": str(tmp_path)}}, train={"batch_size": 1})
    plan = plan_run(wanted, model, HOST)
    assert not plan.fits
    assert "too small: expected at least" in plan.problems[0]
    size = f"{plan.smallest_bytes + 2**12}B"
    again = plan_run(settings(memory={"host": size, "disk": {"path": str(tmp_path)}}, train={"batch_size": 1}), model, HOST)
    assert again.fits


def test_what_is_too_large_for_memory_gets_alternatives_that_fit() -> None:
    model, wanted = gpt(24, 1280), settings(train={"batch_size": 4})
    plan = plan_run(wanted, model, HOST)
    assert not plan.fits
    assert "short by" in plan.problems[0]
    found = find_alternatives(wanted, model, HOST, plan)
    assert found
    assert all(each.plan.fits and "memory.disk.path=tiers" in each.overrides for each in found)
    steps = [round(each.plan.time.step / plan.time.step, 2) for each in found]
    assert steps == sorted(steps)


def test_a_layout_that_does_not_fit_the_ranks_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"parallel.tensor=3 x parallel.data_replicate=1 = 3 does not divide the 4 process"):
        plan_run(settings(parallel={"tensor": 3}), bert(), HOST, ranks=4)
    with pytest.raises(ConfigError, match=r"train.batch_size=2 rows cannot be shared by 4 ranks; use at least 4"):
        plan_run(settings(train={"batch_size": 2}), bert(), HOST, ranks=4)


def test_zero_auto_cuts_parameters_where_states_are_large() -> None:
    small, large = find_machine("a100-80gb"), find_machine("a100-80gb", device_memory=2**21)
    assert plan_run(settings(), bert(), small, ranks=4).layout.zero == 2
    assert plan_run(settings(), bert(), large, ranks=4).layout.zero == 3


def below_device(**memory: object) -> Plan:
    train = {"clip_norm": None if memory.get("optimizer_update") == "in_backward" else 1.0}
    wanted = {"memory": MemoryConfig(**memory).model_dump(), "parallel": {"recompute": "blocks"}, "train": train}
    return plan_run(settings(**wanted), gpt(12, 1024), KNOWN["a100-40gb"])


@pytest.mark.parametrize("when", ["deferred", "in_backward"])
def test_below_an_accelerator_the_placement_of_the_runtime_is_planned(when: str) -> None:
    plan = below_device(device="4GiB", host="16GiB", optimizer_update=when)
    assert plan.fits
    placement, model = plan.memory.placement, plan.model
    assert placement is not None
    assert 0.9 * 4 * 2**30 < plan.peak_bytes <= 4 * 2**30
    below = [unit for unit, homes in zip(model.units, placement.homes, strict=True) if homes["parameters"] == "host"]
    assert 0 < len(below) < len(model.units)
    size = sum(unit.numel for unit in below)
    host = {line.name: line.size_bytes for line in plan.lines()["host"]}
    assert host["parameters"] == pytest.approx(4 * size, rel=0.01)
    assert host["moments"] == 2 * host["parameters"]
    assert host.get("gradients", 0) == (0 if when == "in_backward" else host["parameters"])
    pairs = plan.traffic.by_pair
    assert pairs["device>host"] == host["parameters"]
    assert pairs["host>device"] == pytest.approx(sum(4 * unit.numel * (1 + unit.is_block) for unit in below), rel=0.01)
    machine = plan.machine
    assert plan.time.seconds["bus"] >= pairs["host>device"] / machine.bus_bandwidth * 0.99
    assert plan.time.seconds["optimizer"] > 32 * size / machine.host_bandwidth


def test_what_fits_neither_device_nor_host_goes_to_disk_or_is_refused() -> None:
    assert "memory.host: " in below_device(device="3GiB", host="4GiB").problems[0]
    plan = below_device(device="3GiB", host="4GiB", disk={"path": "tiers"})
    assert plan.fits
    assert plan.memory.peak("host") <= 4 * 2**30
    assert plan.memory.peak("disk") > 0
    assert plan.traffic.disk_read > 0


def test_a_device_that_is_too_small_is_offered_its_host() -> None:
    machine = find_machine("a100-40gb", device_memory=6 * 2**30)
    wanted, model = settings(), gpt(24, 1024)
    plan = plan_run(wanted, model, machine)
    assert not plan.fits
    texts = [each.text for each in find_alternatives(wanted, model, machine, plan)]
    assert any("memory.device=auto" in text for text in texts), texts


def test_auto_recomputes_the_fewest_blocks_that_fit() -> None:
    model = gpt(8, 512)
    wanted = {"train": {"batch_size": 32}, "parallel": {"recompute": "auto"}}

    def planned(recompute: str, room: int) -> Plan:
        machine = dataclasses.replace(HOST, host_memory=room)
        return plan_run(settings(**{**wanted, "parallel": {"recompute": recompute}}), model, machine)

    peaks = [planned(f"first {count}" if count else "none", 2**40).peak_bytes for count in range(9)]
    for room in (peaks[0], peaks[0] - 1, peaks[1], peaks[3], min(peaks)):
        found = planned("auto", room)
        fewest = next(count for count, peak in enumerate(peaks) if peak <= room)
        assert found.fits
        assert found.layout.recompute == (f"first {fewest}" if fewest else "none")
    assert planned("auto", min(peaks) - 1).peak_bytes == min(peaks)
    assert not planned("auto", min(peaks) - 1).fits


def test_auto_beside_a_disk_takes_the_fastest_number(tmp_path: Path) -> None:
    model = gpt(8, 512)
    memory = {"host": "1300MiB", "disk": {"path": str(tmp_path)}}

    def planned(recompute: str) -> Plan:
        return plan_run(settings(memory=memory, train={"batch_size": 8}, parallel={"recompute": recompute}), model, HOST)

    every = [planned(f"first {count}" if count else "none") for count in range(9)]
    assert planned("auto").time.step == min(plan.time.step for plan in every if plan.fits)


@pytest.mark.parametrize("when", ["step", "deferred", "in_backward"])
def test_phases_of_the_disk_add_up_to_what_the_placement_moves(when: str, tmp_path: Path) -> None:
    memory = {"host": "640MiB", "disk": {"path": str(tmp_path)}, "optimizer_update": when}
    plan = plan_run(settings(memory=memory, train={"batch_size": 1, "clip_norm": None}), gpt(8, 512), HOST)
    assert plan.memory.placement is not None
    assert plan.traffic.disk_read + plan.traffic.disk_written == plan.memory.placement.moved_bytes
    assert ("update" in plan.traffic.disk) == (when == "step")
    assert plan.time.seconds["pages"] > 0


def test_offloaded_inputs_leave_memory_and_are_moved(tmp_path: Path) -> None:
    def planned(activations: str) -> Plan:
        memory = {"host": "3GiB", "disk": {"path": str(tmp_path)}, "activations": activations}
        changes = {"train": {"batch_size": 64}, "parallel": {"recompute": "blocks"}}
        return plan_run(settings(memory=memory, **changes), gpt(24, 512), HOST)

    kept, offloaded = planned("keep"), planned("offload")
    size = 64 * 128 * 512 * 4
    # the last block reads one token of a row, so that the peak is at the one before it; buffers take four
    assert sizes(kept)["activations"] - sizes(offloaded)["activations"] == (23 - 4) * size
    assert offloaded.traffic.disk["forward"][1] - kept.traffic.disk.get("forward", (0, 0))[1] == (24 - 2) * size


def test_a_decoder_beside_an_encoder_works_on_the_targets() -> None:
    def work(lengths: list[int] | None, **data: int) -> Workload:
        wanted = settings(model={"name": "x", "task": "seq2seq_lm"}, data={"train": "a.jsonl", "max_length": 100, **data})
        return workload_of(wanted, data_ranks=1, max_length=1000, is_host=True, lengths=lengths)

    rows = settings().train.batch_size
    assert (work(None).lengths, work(None).target_lengths) == ((100,) * rows, (100,) * rows)
    short = work(None, max_target_length=8)
    assert (short.lengths, short.target_lengths, short.step_tokens) == ((100,) * rows, (8,) * rows, 100 * rows)
    known = work([60] * rows, max_target_length=8)
    assert (known.lengths, known.target_lengths, known.step_tokens) == ((52,) * rows, (8,) * rows, 52 * rows)
    assert work([60] * rows).target_lengths == (30,) * rows


def test_choices_of_a_row_are_read_apart_from_each_other() -> None:
    """A row of ReCoRD is a passage with each of ten entities: attention goes over one of them, never over all tokens of the row."""
    wanted = settings(
        model={"name": "x", "task": "multiple_choice"}, data={"train": "a.jsonl", "max_length": 100}, train={"micro_batch_size": 2}
    )
    work = workload_of(wanted, data_ranks=1, max_length=1000, is_host=True, lengths=[90, 250, 310, 60])
    assert work.lengths == (78, 78, 77, 77, 84, 83, 83)  # as few parts as the limit allows, which is the most attention
    assert (work.rows, work.batch_tokens, work.micro_batches) == (2, 560, 2)
    assert work.step_tokens == 90 + 250 + 310 + 60


def test_an_evaluation_is_as_large_as_its_rows_and_its_vocabulary_let_it_be() -> None:
    with torch.device("meta"), skip_initialization():
        model = read(GPT2(GPT2Config(vocab_size=2**16, hidden_size=64, num_layers=2, num_heads=1, max_positions=256), "causal_lm"))
    data = {"train": "rows.jsonl", "validation": "others.jsonl", "max_length": 16}
    recipe = settings(model={"name": "somewhere", "task": "causal_lm"}, data=data, train={"batch_size": 1})

    def scores(evaluated: list[int] | None) -> int:
        return sizes(plan_run(recipe, model, HOST, evaluated=evaluated)).get("logits", 0)

    most = 2**10 * 2**16 * 12  # 2^26 logits are 1,024 tokens'; in float32, with two copies
    assert scores(None) == scores([28] * 400) == most
    assert scores([28] * 30) < most
    assert scores([28]) < scores([28] * 2) < scores([28] * 20)
    assert scores([2000]) > most  # alone


def test_alternatives_are_planned_with_the_same_evaluation() -> None:
    with torch.device("meta"), skip_initialization():
        model = read(GPT2(GPT2Config(vocab_size=2**16, hidden_size=64, num_layers=4, num_heads=1, max_positions=256), "causal_lm"))
    data = {"train": "rows.jsonl", "validation": "others.jsonl", "max_length": 128}
    recipe = settings(model={"name": "somewhere", "task": "causal_lm"}, data=data, train={"batch_size": 16})
    small = dataclasses.replace(HOST, host_memory=768 * 2**20)
    found = find_alternatives(recipe, model, small, plan_run(recipe, model, small, evaluated=[28]), evaluated=[28])
    assert found
    assert all(each.plan.memory.peak_moment != "the evaluation" for each in found)
