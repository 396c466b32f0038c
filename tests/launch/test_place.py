import pytest

from modelzoo.errors import ConfigError
from modelzoo.launch import Place, place_of
from modelzoo.launch.place import first_host

SLURM = {
    "SLURM_JOB_ID": "1234",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "6",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_NNODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "4,2",
    "SLURM_NODELIST": "gpu[003-004]",
}


def test_no_variables_are_one_process():
    assert place_of({}) == Place()


def test_torchrun_gives_the_place():
    environment = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert place_of({**environment, "MASTER_ADDR": "h", "MASTER_PORT": "99"}) == Place(3, 4, 1, 2, "h", 99)


def test_srun_gives_the_place_and_the_first_host_is_met():
    place = place_of(SLURM)
    assert (place.rank, place.world_size, place.local_rank, place.local_size) == (5, 6, 1, 2)
    assert place.address == "gpu003"
    assert place.port is not None
    assert 20_000 <= place.port < 32_000
    assert place_of({**SLURM, "SLURM_PROCID": "0"}).port == place.port
    assert place_of({**SLURM, "SLURM_STEP_ID": "1"}).port != place.port


def test_torchrun_inside_a_step_counts_more_than_the_step():
    assert place_of({**SLURM, "RANK": "0", "WORLD_SIZE": "1"}).world_size == 1


def test_a_batch_script_is_no_task_of_a_step():
    assert place_of({name: value for name, value in SLURM.items() if name != "SLURM_STEP_ID"}) == Place()


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("one", "one"),
        ("a1,b2", "a1"),
        ("gpu[003-007,9],login1", "gpu003"),
        ("rack[1-2]node[05,07-09]", "rack1node05"),
        ("x[12],y", "x12"),
    ],
)
def test_first_host_of_the_short_form(hosts, first):
    assert first_host(hosts) == first


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"SLURM_PROCID": "6"}, "SLURM_PROCID=6 is not below SLURM_NTASKS=6"),
        ({"SLURM_NTASKS": "many"}, "SLURM_NTASKS=many"),
        ({"SLURM_STEP_TASKS_PER_NODE": "x"}, "SLURM_STEP_TASKS_PER_NODE=x: expected a form like 4"),
        ({"RANK": "1"}, "RANK=1 and WORLD_SIZE=None"),
    ],
)
def test_places_that_are_none_are_refused(change, said):
    with pytest.raises(ConfigError, match=said):
        place_of({**SLURM, **change})


def test_tasks_of_each_node_are_counted():
    environment = {**SLURM, "SLURM_NTASKS": "11", "SLURM_STEP_TASKS_PER_NODE": "4(x2),3", "SLURM_NODEID": "2"}
    assert place_of(environment).local_size == 3
