"""Which run comes next: those of a list in order, or those that an Optuna study proposes from the results."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from qnnkit import workspace
from qnnkit.batch import plan, state
from qnnkit.batch.cluster import need
from qnnkit.batch.plan import BatchConfig, Planned, Range
from qnnkit.settings import MAIN_NETS
from qnnkit.stats import Score

GRACE = 5
"""Seconds after which a lock on the study counts as left behind: only one command works on a batch."""


class Listed:
    """The runs of a batch without a sampler."""

    def __init__(self, runs: Iterable[Planned]):
        self.waiting = deque(run for run in runs if not state.finished(run.folder))

    @property
    def left(self) -> int:
        """How many runs are still to be handed out."""
        return len(self.waiting)

    def next(self) -> Planned | None:
        """The run to begin; None when there is none, for now or any more."""
        return self.waiting.popleft() if self.waiting else None

    def hopeless(self, running: Iterable[Planned]) -> list[Planned]:
        """Those of the running runs that are to be stopped."""
        return []

    def tell(self, run: Planned, how: str) -> None:
        """Takes note of how a run has ended: finished, failed or pruned."""


class Study(Listed):
    """The runs of a study's trials, in `optuna.jsonl` of the batch. Only this process speaks with it."""

    def __init__(self, config: BatchConfig, batch: Path, score: Score):
        super().__init__([])
        assert config.optuna is not None  # as the engine has seen
        self.config, self.options, self.batch, self.score = config, config.optuna, batch, score
        self.watched = f"validation_{score.on_validation}"
        self.optuna: Any = need("optuna", "sweep")
        self.states = self.optuna.trial.TrialState
        self.study = self._study()
        self.runs: dict[str, Planned] = {}
        self.trials: dict[str, list[Any]] = {}  # run id -> trials that wait for it
        self.ended: dict[str, str] = {}  # run id -> how, told to this command or known to the study
        self._resume()
        state.write_runs(batch, config.name, config.recipe, self.runs.values(), score)

    @property
    def left(self) -> int:
        return len(self.waiting) + self.unasked

    def next(self) -> Planned | None:
        """The next proposal that has to be run: one that was made before has been run, or is running."""
        while self.waiting or self.unasked:
            if self.waiting:
                return self.waiting.popleft()
            self.unasked -= 1
            # One sampler per trial: a command that goes on draws what an undisturbed one would have drawn.
            self.study.sampler = self._sampler(len(self.study.get_trials(deepcopy=False)))
            trial = self.study.ask(self._distributions())
            run = self._planned(trial.params)
            trial.set_user_attr("run", run.id)
            self._take(trial, run)
            state.write_runs(self.batch, self.config.name, self.config.recipe, self.runs.values(), self.score)
        return None

    def hopeless(self, running: Iterable[Planned]) -> list[Planned]:
        """Tells the study of each new epoch; the runs that it gives up."""
        found = []
        for run in running:
            for row in state.rows(run.folder):
                if (row["event"], row.get("seed")) != ("epoch", run.config.seed) or row[
                    "net"
                ] not in MAIN_NETS:
                    continue
                for trial in self.trials[run.id]:
                    told = self.study.get_trials(deepcopy=False)[trial.number].intermediate_values
                    if row["epoch"] not in told:
                        trial.report(row[self.watched], row["epoch"])
                        if trial.should_prune() and run not in found:
                            found.append(run)
        return found

    def tell(self, run: Planned, how: str) -> None:
        self.ended[run.id] = how
        for trial in self.trials.pop(run.id, []):
            score = self._reached(run) if how == "finished" else None
            state_ = self.states.PRUNED if how == "pruned" else self.states.FAIL
            self.study.tell(trial, score, state=None if score is not None else state_)

    def _take(self, trial: Any, run: Planned) -> None:
        """A trial waits for its run, which is begun unless it runs or has ended."""
        self.runs.setdefault(run.id, run)
        running = run.id in self.trials
        self.trials.setdefault(run.id, []).append(trial)
        how = "finished" if state.finished(run.folder) else self.ended.get(run.id)
        if how is not None:
            self.tell(run, how)
        elif not running:
            self.waiting.append(run)

    def _resume(self) -> None:
        """Takes up the trials that a kill has cut off, and proposes anew those that failed."""
        names, failed, counted = self.options.space.keys(), {}, 0
        storage_id = self.storage.get_study_id_from_name(self.study.study_name)
        for each in self.study.get_trials():
            if each.state == self.states.RUNNING and each.params.keys() != names:  # amid a proposal
                self.study.tell(each.number, state=self.states.FAIL)
            elif each.params.keys() == names:
                run = self._planned(each.params)
                self.runs.setdefault(run.id, run)
                counted += each.state != self.states.FAIL
                if each.state == self.states.RUNNING:
                    id_ = self.storage.get_trial_id_from_study_id_trial_number(storage_id, each.number)
                    self._take(self.optuna.trial.Trial(self.study, id_), run)
                elif each.state == self.states.FAIL:
                    failed[run.id] = each.params
                else:
                    self.ended[run.id] = "pruned" if each.state == self.states.PRUNED else "finished"
        enqueued = {
            each.user_attrs.get("run") for each in self.study.get_trials(states=[self.states.WAITING])
        }
        for id_, params in failed.items():
            if id_ not in {*self.ended, *self.trials, *enqueued}:
                self.study.enqueue_trial(params, user_attrs={"run": id_})
        self.unasked = max(0, self.options.n_trials - counted)

    def _study(self) -> Any:
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

        path = self.batch / "optuna.jsonl"
        content = path.read_bytes() if path.exists() else b""
        if not content.endswith(b"\n") and content:  # a kill amid a write must not spoil what follows
            workspace.write_bytes(path, content[: content.rfind(b"\n") + 1])
        lock = JournalFileOpenLock(str(path), grace_period=GRACE)
        self.storage = JournalStorage(JournalFileBackend(str(path), lock_obj=lock))
        pruners, options = self.optuna.pruners, self.options
        pruner = {
            "none": pruners.NopPruner(),
            "median": pruners.MedianPruner(options.startup_trials, options.warmup_epochs),
            "halving": pruners.SuccessiveHalvingPruner(),
        }[options.pruner]
        # What a study may not change under the same name; n_trials, the sampler and the pruner may.
        asked = self.config.model_dump(mode="json", include={"recipe", "settings"})
        asked["space"] = options.model_dump(mode="json", include={"space"})
        digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
        return self.optuna.create_study(
            storage=self.storage,
            study_name=f"{self.config.name}-{digest[:12]}",
            direction="maximize" if self.score.larger else "minimize",
            pruner=pruner,
            load_if_exists=True,
        )

    def _sampler(self, number: int) -> Any:
        kind = {"tpe": self.optuna.samplers.TPESampler, "random": self.optuna.samplers.RandomSampler}
        digest = hashlib.sha256(f"{self.options.seed} {number}".encode()).digest()
        return kind[self.options.sampler](seed=int.from_bytes(digest[:4]))

    def _distributions(self) -> dict[str, Any]:
        kinds, found = self.optuna.distributions, {}
        for name, space in self.options.space.items():
            if isinstance(space, Range):
                kind = kinds.IntDistribution if space.whole else kinds.FloatDistribution
                found[name] = kind(*space.ends, log=space.log)
            else:  # as JSON: a choice may be a list, which Optuna does not store
                found[name] = kinds.CategoricalDistribution([json.dumps(value) for value in space])
        return found

    def _planned(self, parameters: dict[str, Any]) -> Planned:
        space = self.options.space
        varied = {
            name: value if isinstance(space[name], Range) else json.loads(value)
            for name, value in parameters.items()
        }
        return plan.planned(self.config, varied)

    def _reached(self, run: Planned) -> float | None:
        """The run's own net's score on validation at its best epoch, mean over seeds; None if it is lost."""
        found = {
            row["seed"]: row[self.watched]
            for row in state.rows(run.folder)
            if row["event"] == "test" and row["net"] in MAIN_NETS and self.watched in row
        }
        return sum(found.values()) / len(found) if found else None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Optuna's own messages are left out meanwhile; the table tells more."""
    logging = need("optuna", "sweep").logging
    before = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(before)
