"""Machines: known, from a file, this one; wrong names and figures by name; measuring."""

from pathlib import Path

import pytest

from modelzoo.errors import ConfigError
from modelzoo.plan import KNOWN, find_machine, parse_amount, probe


def test_known_machines_reach_less_than_their_data_sheets() -> None:
    full, capped = KNOWN["h100-80gb"], KNOWN["h100-96gb-500w"]
    assert full.flops["bfloat16"] == pytest.approx(792.1e12)
    assert capped.flops["bfloat16"] / full.flops["bfloat16"] == pytest.approx((5 / 7) ** 0.45)
    assert capped.memory_bandwidth == pytest.approx(0.9 * 2.4e12)
    assert KNOWN["a100-80gb"].flops["bfloat16"] < 312e12


def test_this_machine_has_what_the_system_says() -> None:
    machine = find_machine("this")
    assert machine.host_memory > 2**28
    assert machine.disk_bytes is not None


def test_sizes_can_be_replaced() -> None:
    assert find_machine("a100-80gb", device_memory=2**30).budget == 2**30
    assert find_machine("a100-80gb", host_memory=None) == KNOWN["a100-80gb"]
    host = find_machine("this", host_memory=2**30)
    assert host.budget == 2**30 or host.kind == "cuda"


def test_a_file_describes_a_machine(tmp_path: Path) -> None:
    file = tmp_path / "box.yaml"
    file.write_text("like: a100-80gb\ndevice_memory: 24GiB\nflops: {bfloat16: 1e14}\nlink_bandwidth: 20GB/s\n")
    machine = find_machine(str(file))
    assert (machine.name, machine.device_memory, machine.link_bandwidth) == ("box", 24 * 2**30, 20e9)
    assert machine.flops["bfloat16"] == 1e14
    assert machine.flops["float32"] == KNOWN["a100-80gb"].flops["float32"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("like: a100-80gb\ndevice_memory: -3", r"device_memory: expected a number above 0, found -3"),
        ("like: a100-80gb\ndevice_memory: lots", r"device_memory lots: expected an amount above 0"),
        ("like: a100-80gb\nflops: {bfloat16: 0}", r"flops: expected rates above 0 by precision"),
        ("like: a100-80gb\nmemory_bandwith: 3", r"memory_bandwith: is not a figure of a machine; did you mean memory_bandwidth\?"),
        ("like: a200", r"like: expected one of .*a100-80gb.*, found 'a200'"),
        ("kind: tpu\nlike: a100-80gb", r"kind: expected host or cuda, found 'tpu'"),
        ("device_memory: 3GB", r"flops: is missing; give it, or like: a known machine"),
        ("- 1", "expected keys such as device_memory and flops, found list"),
        ("a: [", "expected YAML or JSON"),
    ],
)
def test_wrong_figures_are_named(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "box.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        find_machine(str(file))


def test_an_unknown_machine_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"--machine a100-80g: expected this, .*did you mean a100-80gb\?"):
        find_machine("a100-80g")


def test_amounts() -> None:
    assert parse_amount("80", bare="GiB", option="--device-memory") == 80 * 2**30
    assert parse_amount("80GB", bare="GiB", option="--device-memory") == 80 * 10**9
    assert parse_amount("1.5 GB/s", bare="GB", option="--disk-bandwidth") == 15 * 10**8
    for wrong in ("0", "-3", "much", "3 XB", ""):
        with pytest.raises(ConfigError, match="--host-memory"):
            parse_amount(wrong, bare="GiB", option="--host-memory")


def test_measuring_replaces_the_rates_and_leaves_nothing(tmp_path: Path) -> None:
    before = find_machine("this")
    machine = probe(before, tmp_path, hidden_size=32, tokens=16, seconds=0.01)
    rates = (machine.memory_bandwidth, machine.disk_read, machine.disk_write, machine.attention_flops, machine.flops["float32"])
    assert all(rate > 0 for rate in rates)
    assert machine.host_memory == before.host_memory
    assert not list(tmp_path.iterdir())
