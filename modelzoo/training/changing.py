"""Settings of a run that is resumed: as they were, with changes that decide nothing about the result."""

from modelzoo.config import RunSettings, load_settings, read_settings
from modelzoo.config.load import Overrides
from modelzoo.errors import ConfigError, listing
from modelzoo.training.identity import deciding_settings
from modelzoo.training.run_directory import RunDirectory

__all__ = ["settings_to_resume"]


def settings_to_resume(directory: RunDirectory, changes: Overrides) -> RunSettings:
    """Return the settings of a run with changes to its layout, tiers, places, checkpoints or output.

    Args:
        directory: Of the run.
        changes: As for `load_settings`.

    Raises:
        ConfigError: A file is not there, a change is no setting, or it decides about the result; the message lists every problem.
    """
    settings = load_settings(str(directory.resolved), changes)
    if not changes:
        return settings
    before, after = deciding_settings(read_settings(directory.resolved)), deciding_settings(settings)
    problems = [
        f"{key}: the run has {before.get(key)!r}, asked for {after.get(key)!r}"
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    ]
    if problems:
        decide = "1 setting decides" if len(problems) == 1 else f"{len(problems)} settings decide"
        raise ConfigError(
            f"{directory.path}: {decide} about the result, which a resumed run keeps; leave out, or start a new run\n"
            f"{listing(problems)}"
        )
    return settings
