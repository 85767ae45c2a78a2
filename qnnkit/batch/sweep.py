"""A sampler that proposes runs from the results so far, and stops the hopeless ones early."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from qnnkit import workspace
from qnnkit.batch import plan, state
from qnnkit.batch.cluster import need
from qnnkit.batch.engine import Crew
from qnnkit.batch.plan import OptunaConfig, Planned, Range
from qnnkit.settings import MAIN_NETS
from qnnkit.stats import Score

GRACE = 5
"""Seconds after which a lock on the study counts as left behind: only one command works on a batch."""


def finish(crew: Crew, score: Score) -> None:
    """Runs what the sampler proposes, until it has proposed n_trials runs.

    Args:
        crew: Hands the runs out.
        score: What they are compared by.
    """
    with _quiet():
        Sweep(crew, score).finish()


class Sweep:
    """A study, and the runs of its trials. Only this process speaks with the study."""

    def __init__(self, crew: Crew, score: Score):
        self.crew, self.batch, self.score = crew, crew.batch, score
        self.watched = f"validation_{score.on_validation}"
        self.config, options = crew.config, crew.config.optuna
        assert options is not None  # as the engine has seen
        self.options: OptunaConfig = options
        self.optuna = need("optuna", "sweep")
        self.study = self._study()
        self.trials: dict[str, list[Any]] = {}  # run id -> trials that wait for it
        self.runs: dict[str, Planned] = {}
        self.pruned: set[str] = set()
        self.failed: set[str] = set()  # by this command; the next one tries them again
        self.looked = 0.0

    def finish(self) -> None:
        """Asks, hands out and tells, until enough trials have ended."""
        waiting = deque(self._left_over())
        with self.crew.stopping():
            while True:
                while self.crew.free and (waiting or self._proposed() < self.options.n_trials):
                    run = waiting.popleft() if waiting else self._ask()
                    if run is not None:
                        self.crew.start(run)
                if not self.crew.futures and not waiting and self._proposed() >= self.options.n_trials:
                    return
                for run, ended in self.crew.ended():
                    if self.crew.again(run, ended):
                        waiting.append(run)
                        continue
                    if ended["state"] == "failed":
                        self.failed.add(run.id)
                    self._tell(run, ended["state"])
                self._follow()
                self.crew.rest(len(waiting) + self.options.n_trials - self._proposed())

    def _study(self) -> Any:
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

        path = self.batch / "optuna.jsonl"
        if path.exists():
            _drop_half_line(path)
        lock = JournalFileOpenLock(str(path), grace_period=GRACE)
        return self.optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(path), lock_obj=lock)),
            study_name=f"{self.config.name}-{_question(self.config)}",
            direction="maximize" if self.score.larger else "minimize",
            pruner=self._pruner(),
            load_if_exists=True,
        )

    def _pruner(self) -> Any:
        pruners = self.optuna.pruners
        if self.options.pruner == "median":
            return pruners.MedianPruner(
                n_startup_trials=self.options.startup_trials, n_warmup_steps=self.options.warmup_epochs
            )
        return pruners.SuccessiveHalvingPruner() if self.options.pruner == "halving" else pruners.NopPruner()

    def _sampler(self, number: int) -> Any:
        """One per trial: a command that goes on draws what an undisturbed one would have drawn."""
        kind = {"tpe": self.optuna.samplers.TPESampler, "random": self.optuna.samplers.RandomSampler}
        digest = hashlib.sha256(f"{self.options.seed} {number}".encode()).digest()
        return kind[self.options.sampler](seed=int.from_bytes(digest[:4]))

    def _distributions(self) -> dict[str, Any]:
        kinds, found = self.optuna.distributions, {}
        for name, space in self.options.space.items():
            if not isinstance(space, Range):  # as JSON: a choice may be a list, which optuna does not store
                found[name] = kinds.CategoricalDistribution([json.dumps(value) for value in space])
            elif space.whole:
                found[name] = kinds.IntDistribution(int(space.low), int(space.high), log=space.log)
            else:
                found[name] = kinds.FloatDistribution(space.low, space.high, log=space.log)
        return found

    def _planned(self, parameters: Mapping[str, Any]) -> Planned:
        space = self.options.space
        varied = {
            name: value if isinstance(space[name], Range) else json.loads(value)
            for name, value in parameters.items()
        }
        return plan.planned(self.config, varied)

    def _ask(self) -> Planned | None:
        """The next run; None when its answer is known, or on its way, because it was proposed before."""
        self.study.sampler = self._sampler(len(self.study.get_trials(deepcopy=False)))
        trial = self.study.ask(self._distributions())
        run = self._planned(trial.params)
        trial.set_user_attr("run", run.id)
        return self._take(trial, run)

    def _take(self, trial: Any, run: Planned) -> Planned | None:
        known = run.id in self.trials
        self.trials.setdefault(run.id, []).append(trial)
        if run.id not in self.runs:
            self.runs[run.id] = run
            self._write_runs()
        if known:
            return None
        how = self._state(run)
        given_up = (how == "pruned" and run.id in self.pruned) or (how == "failed" and run.id in self.failed)
        if how == "finished" or given_up:
            self._tell(run, how)
            return None
        return run

    def _state(self, run: Planned) -> str:
        return state.look(run.id, run.folder, run.varied, self.batch, self.score).state

    def _left_over(self) -> Iterator[Planned]:
        """The trials of an earlier command that were under way, or failed: again, with the same values."""
        from optuna.trial import Trial, TrialState

        again = set(self.study.user_attrs.get("again", []))
        retry = []
        for each in self.study.get_trials(deepcopy=True):
            complete = each.params.keys() == self.options.space.keys()
            if complete and each.state != TrialState.WAITING:
                run = self._planned(each.params)
                self.runs.setdefault(run.id, run)
                if each.state == TrialState.PRUNED:
                    self.pruned.add(run.id)
            if each.state == TrialState.RUNNING:
                if complete:
                    trial = Trial(self.study, each._trial_id)
                    run = self._take(trial, self._planned(each.params))
                    if run is not None and self._state(run) == "pruned":  # but the study was not told
                        self._tell(run, "pruned")
                    elif run is not None:
                        yield run
                else:  # killed in the middle of a proposal
                    self.study.tell(each.number, state=TrialState.FAIL)
            elif each.state == TrialState.FAIL and complete and each.number not in again:
                retry.append(each)
        for each in retry:
            self.study.enqueue_trial(each.params)
            again.add(each.number)
            self.study.set_user_attr("again", sorted(again))
        self._write_runs()

    def _proposed(self) -> int:
        """Trials that count: not those cut short, or proposed again, nor those that still wait to be."""
        from optuna.trial import TrialState

        again = set(self.study.user_attrs.get("again", []))
        return sum(
            each.params.keys() == self.options.space.keys()
            and each.number not in again
            and each.state != TrialState.WAITING
            for each in self.study.get_trials(deepcopy=False)
        )

    def _follow(self) -> None:
        """Tells the study of each new epoch, and stops the runs that it gives up."""
        if time.monotonic() - self.looked < 1:
            return
        self.looked = time.monotonic()
        for id_ in self.crew.futures:
            first = self.runs[id_].config.seed
            for row in state.rows(self.runs[id_].folder):
                if row["event"] != "epoch" or row["net"] not in MAIN_NETS or row["seed"] != first:
                    continue
                for trial in self.trials[id_]:
                    if row["epoch"] not in self._told(trial):
                        trial.report(row[self.watched], row["epoch"])
                        if id_ not in self.pruned and trial.should_prune():
                            self.pruned.add(id_)
                            self.crew.prune(id_)

    def _told(self, trial: Any) -> Mapping[int, float]:
        return self.study.get_trials(deepcopy=False)[trial.number].intermediate_values

    def _tell(self, run: Planned, how: str) -> None:
        from optuna.trial import TrialState

        for trial in self.trials.pop(run.id, []):
            score = self._reached(run) if how == "finished" else None
            if score is not None:
                self.study.tell(trial, score)
            else:
                self.study.tell(trial, state=TrialState.PRUNED if how == "pruned" else TrialState.FAIL)

    def _write_runs(self) -> None:
        state.write_runs(self.batch, self.config.name, self.config.recipe, self.runs.values(), self.score)

    def _reached(self, run: Planned) -> float | None:
        """The run's own net's score on validation at its best epoch, mean over seeds; None if it is lost."""
        found = {
            row["seed"]: row[self.watched]
            for row in state.rows(run.folder)
            if row["event"] == "test" and row["net"] in MAIN_NETS and self.watched in row
        }
        return sum(found.values()) / len(found) if found else None


def _question(config: plan.BatchConfig) -> str:
    """What a study may not change under the same name; n_trials, the sampler and the pruner may."""
    assert config.optuna is not None
    asked = config.model_dump(mode="json", include={"recipe", "settings"})
    asked["space"] = config.optuna.model_dump(mode="json", include={"space"})
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:12]


def _drop_half_line(path: Path) -> None:
    """A kill in the middle of a write must not spoil the lines that follow."""
    content = path.read_bytes()
    if content and not content.endswith(b"\n"):
        workspace.write_bytes(path, content[: content.rfind(b"\n") + 1])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The sampler's own messages are left out meanwhile; the table tells more."""
    logging = need("optuna", "sweep").logging
    before = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(before)
