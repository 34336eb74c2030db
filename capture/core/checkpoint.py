"""Checkpoints of a run: OLMo-core's native files, then the manifest, then one rename.

A checkpoint is written into a folder that no reader looks at, and becomes visible by a single
rename when its manifest is complete. So a crash between any two writes leaves the last checkpoint
as the last one. Loads torch and Core only when weights are written or read.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from . import manifest as manifests
from .errors import CheckpointError
from .manifest import Manifest, Shape, sync_folder

FOLDER = "checkpoints"
_NAME = re.compile(r"iter_(\d{7,})")  # as Miles names them: the collection that comes next
_PARTIAL = re.compile(r"\.iter_\d{7,}\.partial(-tmp)?")  # Core adds -tmp while it writes


def save_native(folder: Path, train_module: Any, state: Mapping[str, Any]) -> None:
    """Let Core write model and optimizer, and for each rank `state` and the random states.

    A collective of all ranks. `folder` must not exist. The manifest makes it a checkpoint.
    """
    from olmo_core.distributed.utils import get_rank
    from olmo_core.train.checkpoint import Checkpointer
    from olmo_core.train.utils import EnvRngStates

    own = {"rng": EnvRngStates.current_state().as_dict(), "rank": get_rank()}
    try:
        with _one_process_is_fine():
            Checkpointer(work_dir=folder.parent).save(folder, train_module, {**state, **own})
    except _failures() as error:
        raise CheckpointError(f"{folder}: Core cannot write it: {_first_line(error)}") from error


def load_native(folder: Path, train_module: Any) -> dict[str, Any]:
    """Load what `save_native` wrote, restore the random states, give this rank's `state`.

    A collective of all ranks. Check the manifest first: Core takes another world size silently.
    Raises CheckpointError where this rank has no file of its own, or its generators are others.
    """
    from olmo_core.distributed.utils import get_rank
    from olmo_core.train.checkpoint import Checkpointer
    from olmo_core.train.utils import EnvRngStates

    from . import collective

    own = folder / manifests.rank_file(get_rank())
    with collective.guard("restore"):
        if not own.is_file():
            raise CheckpointError(f"{own}: missing, and Core would take rank 0's instead")
        plan = folder / manifests.WEIGHTS / ".metadata"
        if not plan.is_file():
            raise CheckpointError(f"{plan}: missing, so Core cannot find the weights")
    try:
        with _one_process_is_fine():
            state = Checkpointer(work_dir=folder.parent).load(
                folder, train_module, load_trainer_state=True, load_optim_state=True
            )
    except _failures() as error:
        raise CheckpointError(
            f"{folder}: Core cannot load it into this run's model and optimizer: resume with the"
            f" settings that saved it; {_first_line(error)}"
        ) from error
    state = dict(state or {})
    with collective.guard("restore"):
        if "rng" not in state:
            raise CheckpointError(f"{own}: holds no random state")
        if (rank := state.pop("rank", get_rank())) != get_rank():
            raise CheckpointError(f"{own}: holds the state of rank {rank}")
        if not EnvRngStates.from_dict(state.pop("rng")).restore():
            raise CheckpointError(f"{own}: random states of another Python, numpy or torch")
    return state


@contextlib.contextmanager
def _one_process_is_fine() -> Iterator[None]:
    """Without PyTorch's warning that a checkpoint is saved by a single process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _failures() -> tuple[type[BaseException], ...]:
    """What a native read or write raises; torch's own error of several ranks is no Exception."""
    from torch.distributed.checkpoint.api import CheckpointException

    return (Exception, CheckpointException)


def _first_line(error: BaseException) -> str:
    """The first cause, on one line."""
    causes = list(getattr(error, "failures", {}).values())
    cause = causes[0][0] if causes else error
    return f"{type(cause).__name__}: {' '.join(str(cause).split())[:300]}"


class CheckpointStore:
    """The checkpoints below one run folder, named by the collections that were trained on.

    keep: how many of the newest stay; 0 keeps all. rank: of this process; only rank 0 touches
    folders, all ranks take part in the native write. agree: called after each stage with this
    rank's error or None, it raises on every rank when any has one.
    """

    def __init__(
        self,
        root: Path,
        *,
        keep: int = 0,
        rank: int = 0,
        agree: Callable[[CheckpointError | None], None] | None = None,
    ) -> None:
        self.root, self.keep, self.rank = Path(root) / FOLDER, keep, rank
        self._agree = agree or _alone

    def collections(self) -> list[int]:
        """Collections trained on in each finished checkpoint, oldest first."""
        if not self.root.is_dir():
            return []
        found = (_NAME.fullmatch(path.name) for path in self.root.iterdir() if path.is_dir())
        return sorted(int(match[1]) for match in found if match)

    def path(self, collections: int) -> Path:
        """The folder of the checkpoint after so many collections."""
        return self.root / f"iter_{collections:07d}"

    def latest(self) -> Path | None:
        """The newest finished checkpoint; None where there is none."""
        found = self.collections()
        return self.path(found[-1]) if found else None

    def save(
        self,
        collections: int,
        write_native: Callable[[Path], None],
        describe: Callable[..., Manifest],
    ) -> Path:
        """Write the checkpoint after so many collections and give its folder.

        write_native(folder): all ranks, creates the folder. describe(files=...): the manifest.
        Raises CheckpointError on every rank; the checkpoints that were there are untouched.
        """
        target = self.path(collections)
        partial = self.root / f".{target.name}.partial"
        with self._stage("before the native write", partial):
            if self.rank == 0:
                if target.exists():
                    raise CheckpointError(f"{target}: there is this checkpoint already")
                self.root.mkdir(parents=True, exist_ok=True)
                self._sweep()
        with self._stage("in the native write", partial):
            write_native(partial)
        with self._stage("between the native write and the manifest", partial):
            if self.rank == 0:
                _sync_tree(partial)
                manifests.write(partial, describe(files=manifests.file_entries(partial)))
                partial.rename(target)
                sync_folder(self.root)
        if self.rank == 0:
            self._prune()
        return target

    def check(self, folder: Path, shape: Shape) -> Manifest:
        """Check a checkpoint before it is loaded, on every rank; rank 0 reads the hashes.

        Raises CheckpointError on every rank, and names the one before it where there is one.
        """
        found, problem = None, None
        try:
            found = manifests.check(folder, shape, hashes=self.rank == 0)
            if self.path(found.collection).name != folder.name:
                raise CheckpointError(
                    f"{folder}: the manifest is of {found.collection} collections"
                )
        except CheckpointError as error:
            older = [path for path in map(self.path, self.collections()) if path.name < folder.name]
            hint = f"; the one before it is {older[-1].name}" if older else ""
            problem = CheckpointError(f"{error}{hint}")
        self._agree(problem)
        assert found is not None
        return found

    @contextlib.contextmanager
    def _stage(self, what: str, partial: Path) -> Any:
        problem = None
        try:
            yield
        except CheckpointError as error:
            problem = error
        except Exception as error:  # disk full comes as OSError, RuntimeError or Core's own
            text = " ".join(str(error).split())[:300]
            problem = CheckpointError(f"{partial}: {what}: {type(error).__name__}: {text}")
            problem.__cause__ = error
        try:
            self._agree(problem)
        except Exception:
            if self.rank == 0:
                self._sweep()
            raise

    def _sweep(self) -> None:
        """Remove what an interrupted write left; nobody reads it."""
        for path in self.root.iterdir() if self.root.is_dir() else ():
            if _PARTIAL.fullmatch(path.name):
                shutil.rmtree(path, ignore_errors=True)

    def _prune(self) -> None:
        for old in map(self.path, self.collections()[: -self.keep] if self.keep else ()):
            # renamed first, so that a half-removed one is never taken for a checkpoint
            doomed = self.root / f".{old.name}.partial"
            with contextlib.suppress(OSError):
                old.rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)


def _alone(problem: CheckpointError | None) -> None:
    if problem is not None:
        raise problem


def _sync_tree(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        else:
            sync_folder(path)
    sync_folder(folder)
