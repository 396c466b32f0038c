"""The experiments of the scorecard: each a set of tests, and what is said of what they counted."""

from collections.abc import Callable
from dataclasses import dataclass, field

KILLS = "tests/training/test_kills.py"
FAULTS = "tests/runtime/test_checkpoint_faults.py"
CHECKPOINT = "tests/runtime/test_checkpoint.py"
STATES = "tests/runtime/test_checkpoint_states.py"
FILES = "tests/hub/test_checkpoint_files.py"
BAD_BATCHES = "tests/conformance/test_bad_batches.py"


@dataclass
class Outcome:
    """What came of the tests of a row."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    counted: dict[str, list[float]] = field(default_factory=dict)
    """What the tests counted, by name, one value a test."""

    def total(self, name: str) -> int:
        return int(sum(self.counted.get(name, [])))

    def most(self, name: str) -> float:
        return max(self.counted.get(name, [0]))


@dataclass(frozen=True)
class Row:
    """An experiment of the scorecard."""

    name: str
    experiment: str
    tests: tuple[str, ...]
    figure: Callable[[Outcome], str]


def _kills(found: Outcome) -> str:
    return (
        f"{found.total('kills')} kills: {found.total('resumable')} resumable, {found.total('exact')} bit for bit; at most "
        f"{found.most('lost'):g} save interval(s) lost; {found.total('runs')} runs came to the same end"
    )


def _two_ranks(found: Outcome) -> str:
    return f"{_kills(found)}; a survivor ended within {found.most('slowest_survivor_s'):g} s"


def _publishing(found: Outcome) -> str:
    one, two = found.total("publish kills") + found.total("publish errors"), found.total("publish errors of two ranks")
    return f"{one} faults on one process, {two} on two ranks: 0 mixed, 0 unloadable, each error told to all ranks"


def _stops(found: Outcome) -> str:
    asked = 5 * (found.passed + found.failed)
    return f"{found.total('stops within an epoch')} of {asked} stops: same order of samples, same end bit for bit"


def _limits(found: Outcome) -> str:
    return (
        f"{found.total('runs')} of 12 runs right; the plan is off by {found.most('off'):.0%} at most, a load takes "
        f"{found.most('load'):.2f} times the model at most"
    )


def _mutants(found: Outcome) -> str:
    return (
        f"{found.total('mutants')} mutants: {found.total('refused')} refused by name, {found.total('read')} read as the reference "
        f"reads them, {found.total('read alone')} where the reference fails; {found.total('fault')} other errors, hangs or crashes"
    )


def _count(what: str) -> Callable[[Outcome], str]:
    return lambda found: f"{found.passed} of {found.passed + found.failed} {what}"


ROWS = (
    Row(
        "A1",
        "kill -9 at a random moment of a run that saves every step",
        (f"{KILLS}::test_run_killed_two_hundred_times_goes_on_bit_for_bit",),
        _kills,
    ),
    Row(
        "A2",
        "the same on 2 ranks, killing either or both",
        (f"{KILLS}::test_run_of_two_ranks_killed_at_either_or_both_goes_on_bit_for_bit",),
        _two_ranks,
    ),
    Row(
        "A3",
        "a kill, and an error, at every call to the system while publishing",
        tuple(
            f"{FAULTS}::test_{name}"
            for name in (
                "kill_at_every_point_of_publishing_leaves_old_or_new",
                "error_at_every_point_of_publishing_is_told_and_leaves_old_or_new",
                "error_on_either_of_two_ranks_is_told_to_both_with_the_rank",
            )
        ),
        _publishing,
    ),
    Row(
        "A4",
        "disk full at 0, 10, ... 90 % of the save: file size limit, injected, real file system; no room; no right",
        tuple(
            f"{FAULTS}::test_{name}"
            for name in (
                "file_size_limit_leaves_the_old_checkpoint",
                "disk_full_after_some_bytes_leaves_the_old_checkpoint",
                "real_full_disk_leaves_the_old_checkpoint",
                "full_disk_is_refused_before_anything_is_written",
                "folder_without_the_right_to_write_is_an_error_and_stays_as_it_is",
            )
        ),
        _count("leave the old checkpoint, and a save after it works"),
    ),
    Row(
        "A5",
        "saving in the background: weights changed at once, killed in flight, failed writer",
        ("tests/runtime/test_checkpoint_background.py", "tests/training/test_background_saves.py"),
        _count("right"),
    ),
    Row(
        "A5 kills",
        "kill -9 of a run that saves every step in the background",
        (f"{KILLS}::test_run_that_saves_in_the_background_loses_two_intervals_at_most",),
        _kills,
    ),
    Row(
        "A6",
        "five stops within one epoch, at odd steps, 4 seeds",
        ("tests/training/test_resume_often.py::test_five_stops_within_one_epoch_change_nothing",),
        _stops,
    ),
    Row(
        "A7",
        "the newest damaged by hand",
        (f"{CHECKPOINT}::test_damaged_newest_falls_back_and_says_why", f"{STATES}::test_retention_never_removes_the_last_good_one"),
        _count("fall back to the one before and say why"),
    ),
    Row(
        "B2",
        "{1,2,3,4} -> {1,2,3,4} ranks x ZeRO 0 to 3 x tied or not, vocabulary 7, with tensor 2 and hybrid sharding",
        ("tests/runtime/test_resume_grid.py::test_checkpoint_of_every_layout_resumes_on_every_other_bit_for_bit",),
        lambda found: f"{found.total('pairs')} pairs bit for bit, next loss within 1e-6",
    ),
    Row(
        "B6, F4",
        "edge states of optimizers and generators; ranks that disagree; a save on one rank only",
        (STATES, f"{CHECKPOINT}::test_optimizer_without_a_step_is_a_legal_state", "tests/runtime/test_checkpoint_ranks.py"),
        _count("exact, or refused with the names"),
    ),
    Row(
        "D1",
        "hostile safetensors headers; a file cut at every 1/32; bytes flipped in a manifest and in a checkpoint",
        (
            "tests/hub/test_safetensors_file.py",
            f"{CHECKPOINT}::test_manifest_with_any_flipped_byte_is_refused",
            f"{CHECKPOINT}::test_damaged_newest_falls_back_and_says_why",
        ),
        _count("tests: refused with file and cause, or read bit for bit"),
    ),
    Row("D2", "hostile indexes, names and links; no file outside of the folder is opened", (FILES,), _count("refused by name")),
    Row(
        "D3",
        "pickles that run code, damaged ones, code in a tokenizer's folder; what is written here",
        (
            "tests/hub/test_pickle_checkpoints.py",
            "tests/data/test_tokenizer_files.py::test_code_in_a_folder_is_not_run",
            f"{CHECKPOINT}::test_no_file_of_a_checkpoint_is_a_pickle",
        ),
        _count("right, no code was run"),
    ),
    Row(
        "D4",
        "configs with sizes, kinds and values that are none; nested 10^4 deep; larger than 8 MiB",
        (
            "tests/converters/test_family_configs.py::test_sizes_that_are_none_are_refused_by_field_and_value",
            "tests/converters/test_family_configs.py::test_a_million_layers_are_refused",
            f"{FILES}::test_a_broken_config_is_named",
            "tests/hub/test_config_sizes.py::test_sizes_of_another_model_are_named_in_milliseconds",
        ),
        _count("refused by field and value"),
    ),
    Row(
        "D5",
        "every regular expression against repeated texts of 10^5 characters; patterns in an adapter's file",
        (
            "tests/reliability/test_patterns_take_no_time.py",
            "tests/adapters/test_adapters_refused.py::test_a_pattern_that_could_take_years_is_refused",
            "tests/converters/test_name_mapping.py::test_long_names_take_no_time",
        ),
        _count("at once"),
    ),
    Row(
        "D6",
        "missing, unexpected, misnamed, misshaped, integer, NaN and infinite tensors; another depth, another family",
        ("tests/hub/test_load_weights.py", "tests/converters/test_checkpoint_matching.py"),
        _count("named with key, expected and found, or right"),
    ),
    Row(
        "D7",
        "hostile mutants of configs, indexes, weights, tokenizers, recipes, stores, adapters, checkpoints; 3 GiB of addresses",
        ("tests/reliability/test_fuzz.py::test_many_hostile_mutants_are_refused_or_read_right",),
        _mutants,
    ),
    Row(
        "E1",
        "NaN or infinity in loss or gradient of one rank alone, or of one process",
        (
            "tests/training/test_failing_ranks.py::test_bad_number_on_one_rank_stops_all_and_no_step_is_taken",
            "tests/training/test_step.py::test_non_finite_step_is_not_taken_and_names_samples_and_parameters",
            "tests/training/test_step.py::test_non_finite_loss_on_one_rank_stops_all",
            "tests/training/test_runs.py::test_non_finite_loss_stops_and_keeps_the_last_good_checkpoint",
        ),
        _count("tests (the first: 8 places): all ranks stop, no step is taken, the checkpoint is whole"),
    ),
    Row(
        "E2",
        "no rows; fewer rows than ranks; empty texts; no target",
        (
            "tests/data/test_dataset.py::test_no_rows_are_refused",
            "tests/data/test_dataset.py::test_rows_that_lose_every_target_are_refused_or_counted",
            "tests/data/test_causal_lm.py::test_empty_texts_are_dropped_and_counted",
            "tests/training/test_step.py::test_step_without_any_target_is_refused_naming_its_samples",
            "tests/training/test_step.py::test_steps_on_ranks_equal_one_process_also_without_a_sample_for_each",
            "tests/training/test_evaluation.py::test_ranks_count_every_sample_once_also_with_a_batch_for_one_of_them",
        ),
        _count("refused, counted or exact"),
    ),
    Row(
        "E3, E4",
        "texts too long, ids, labels and token types out of range, for every family",
        (
            *(
                f"{BAD_BATCHES}::test_{name}"
                for name in (
                    "an_id_out_of_range_is_named_with_row_position_and_vocabulary",
                    "a_negative_label_that_is_not_the_ignored_one_is_refused",
                    "a_text_longer_than_the_model_is_refused_with_both_numbers",
                    "a_token_type_out_of_range_is_refused",
                )
            ),
            "tests/data/test_collate.py",
            "tests/models/test_model_inputs.py",
        ),
        _count("named with row, place, value and limit"),
    ),
    Row(
        "E5",
        "padding on either side and of padding alone, for every family; padding that is the end token",
        (
            f"{BAD_BATCHES}::test_padding_on_either_side_changes_nothing",
            f"{BAD_BATCHES}::test_a_row_of_padding_alone_leaves_the_others_as_they_are",
            "tests/data/test_collate.py::test_the_mask_goes_by_length_where_the_text_has_the_padding_id",
        ),
        _count("unchanged"),
    ),
    Row(
        "E6",
        "a kernel limit of 1.1 times the planned peak on training with saves, of the model and a bit on load and conversion",
        ("tests/reliability/test_memory_limits.py",),
        _limits,
    ),
    Row(
        "E7",
        "memory that runs out in a step or an evaluation (RLIMIT_AS lowered)",
        ("tests/training/test_memory_error.py::test_a_run_whose_memory_runs_out_says_so_and_goes_on_from_its_checkpoint",),
        _count("say so, exit with 6, and go on from the checkpoint"),
    ),
    Row(
        "E8",
        "the disk of the tiers: files cut, deleted, read-only, full; two runs in one folder",
        ("tests/runtime/tiers/test_tiers_faults.py",),
        _count("an error with the path, or refused"),
    ),
)
