"""Ranks that stop together: one rank's error is everybody's error, and the cause's rank is named first."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import modelzoo.errors as errors
from modelzoo.errors import ModelZooError, RankError
from modelzoo.runtime.lost import CollectiveLost, is_lost
from modelzoo.runtime.process import World

__all__ = ["agree", "failing_together", "mark_agreed", "raise_together"]

ErrorType = TypeVar("ErrorType", bound=Exception)


def raise_together(world: World, error: Exception | None) -> None:
    """Raise on every rank if any rank brings an error; return on every rank if none does. Collective.

    The rank that has the error raises it with its own traceback as the cause; the others raise the same class (RankError for one
    that is not modelzoo's). All messages start with the number of the lowest rank that failed.

    Args:
        world: The processes.
        error: What went wrong on this rank, or None.
    """
    if world.world_size == 1:
        if error is not None:
            raise error
        return
    told = world.gather(None if error is None else (_known_name(error), str(error)))
    failed = [(rank, *cause) for rank, cause in enumerate(told) if cause is not None]
    if not failed:
        return
    rank, name, message = failed[0]
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, ModelZooError)):
        kind, message = RankError, f"{name}: {message}"
    others = [str(other) for other, _, _ in failed[1:]]
    also = f" (also on rank {', '.join(others)})" if others else ""
    raise mark_agreed(world, kind(f"rank {rank}: {message}{also}")) from error


def _known_name(error: Exception) -> str:
    """Return the name of an error's class, or of the nearest one above it that every rank knows."""
    names = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__]
    return names[0] if names else type(error).__name__


def mark_agreed(world: World, error: ErrorType) -> ErrorType:
    """Return `error`, noted as one that every rank raises by itself at the same place; `failing_together` lets it pass."""
    world.agreed_error = error
    return error


def agree(world: World, facts: Mapping[str, str]) -> None:
    """Check that every rank has the same facts (config, data, parameters). Collective.

    Args:
        world: The processes.
        facts: A name and a text each; long texts are compared by their hash.

    Raises:
        RankError: Ranks differ; the message names the fact, the first rank that differs and both values.
    """
    told = world.gather({name: _short(text) for name, text in facts.items()})
    for rank, other in enumerate(told):
        for name in sorted({*told[0], *other}):
            if told[0].get(name) != other.get(name):
                found = f"rank 0 has {told[0].get(name)}, rank {rank} has {other.get(name)}"
                raise mark_agreed(world, RankError(f"{name}: {found}; expected the same"))


@contextmanager
def failing_together(world: World, doing: str = "the run") -> Iterator[None]:
    """Turn an error inside into one that names the rank that failed first, and leave the group so that no rank waits for it.

    Not collective: it is for errors that come to one rank alone (a bad batch in the middle of a forward). The others then lose
    their connection within moments, and find the cause in the store of the group.

    Args:
        world: The processes.
        doing: What the ranks do first, until one says that it enters something else.

    Raises:
        ModelZooError: Of the class of the error with which a rank failed first, RankError for one that is not modelzoo's.
        RankError: Another rank was lost or is late; the message says which, and in what.
    """
    if world.roll_call is not None:
        world.enter(doing)
    try:
        yield
    except Exception as error:
        if world.world_size == 1 or error is world.agreed_error:
            raise
        lost = error
        if is_lost(error) and not isinstance(error, CollectiveLost):
            lost = CollectiveLost("an exchange between ranks", str(error))
        if world.roll_call is None:
            world.close()
            if lost is error:
                raise
            raise RankError(f"rank {world.rank} of {world.world_size} lost another rank in {doing}: {error}") from error
        explained = _leave(world, lost)
        raise explained or error from error
    except KeyboardInterrupt as interrupt:
        if world.roll_call is not None:
            _leave(world, interrupt)
        raise


def _leave(world: World, error: BaseException) -> Exception | None:
    """Tell the others of an error, or find out which of them caused it; leave the group, so that nobody waits for this rank."""
    assert world.roll_call is not None
    told = world.roll_call
    if not isinstance(error, CollectiveLost):
        explained = told.explain(error)
        world.abandon()
    else:
        world.abandon()
        explained = told.explain(error)
    told.farewell()
    world.close()
    return explained


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]}"
