"""Which run comes next: those of a list in order, or those that Optuna proposes from the results so far."""

from __future__ import annotations

import hashlib
import json
import os
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from qnnkit import workspace
from qnnkit.batch import batch_file
from qnnkit.batch.batch_file import BatchConfig, Planned, Range
from qnnkit.runs import rows, state
from qnnkit.settings import MAIN_NETS

PRUNERS = {"none": "NopPruner", "median": "MedianPruner", "halving": "SuccessiveHalvingPruner"}
SAMPLERS = {"tpe": "TPESampler", "random": "RandomSampler"}


class Listed:
    """The runs of a batch without a sampler, in their order."""

    unasked = 0
    """Runs that a sampler has yet to propose."""

    trials: list[str]
    """Of a sampler's proposals, the ids of their runs; a run may be proposed twice."""

    def __init__(self, config: BatchConfig, batch: Path, runs: Sequence[Planned]):
        self.config, self.batch, self.score = config, batch, runs[0].score
        self.runs, self.trials = {run.id: run for run in runs}, []
        self.waiting = deque(run for run in runs if not (run.folder / "result.json").exists())
        self.write()

    def write(self) -> None:
        """Lists the runs of the batch, and the score that they are compared by, in its batch.json."""
        runs = [
            {"id": run.id, "folder": os.path.relpath(run.folder, self.batch), "settings": run.varied}
            for run in self.runs.values()
        ]
        content = {"name": self.config.name, "recipe": self.config.recipe, "score": asdict(self.score)}
        content |= {"trials": self.trials} if self.trials else {}
        workspace.write_json(self.batch / "batch.json", content | {"runs": runs})

    @property
    def left(self) -> int:
        """How many runs are still to be handed out."""
        return len(self.waiting) + self.unasked

    def next(self) -> Planned | None:
        """The run to begin; None if there is none."""
        return self.waiting.popleft() if self.waiting else None

    def hopeless(self, running: Iterable[Planned]) -> list[Planned]:
        """Those of the running runs that are to be stopped."""
        return []

    def tell(self, run: Planned, how: str) -> None:
        """Notes how a run has ended: "finished", "failed" or "pruned"."""


class Study(Listed):
    """The runs of an Optuna study in memory, which batch.json and the run folders make again."""

    def __init__(self, config: BatchConfig, batch: Path, runs: Sequence[Planned]):
        import optuna

        assert config.optuna is not None  # as the engine has seen
        self.config, self.batch, self.score = config, batch, runs[0].score
        self.optuna, self.options = optuna, config.optuna
        self.watched = f"validation_{self.score.on_validation}"
        self.runs, self.waiting, self.trials = {}, deque(), []
        self.open: dict[str, Any] = {}  # run id -> the trial that waits for its end
        self.reported: dict[str, set[int]] = defaultdict(set)  # run id -> epochs
        self.distributions = self._distributions(runs)
        pruner = getattr(optuna.pruners, PRUNERS[self.options.pruner])
        bounds = (self.options.startup_trials, self.options.warmup_epochs)
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # the batch's own table tells of each run
        self.study = optuna.create_study(
            direction="maximize" if self.score.larger else "minimize",
            pruner=pruner(*bounds) if self.options.pruner == "median" else pruner(),
        )
        self._resume()
        self.write()

    @property
    def unasked(self) -> int:
        return max(0, self.options.n_trials - len(self.trials))

    def next(self) -> Planned | None:
        """The next proposal that has to be run."""
        while not self.waiting and self.unasked:
            # One sampler per trial: a resumed study draws what an undisturbed one would have drawn.
            digest = hashlib.sha256(f"{self.options.seed} {len(self.trials)}".encode()).digest()
            sampler = getattr(self.optuna.samplers, SAMPLERS[self.options.sampler])
            self.study.sampler = sampler(seed=int.from_bytes(digest[:4]))
            trial = self.study.ask(self.distributions)
            run = batch_file.planned(self.config, self._values(trial.params, json.loads))
            self._take(trial, run, "finished" if state.finished(run.folder) else "waiting")
            self.write()
        return super().next()

    def hopeless(self, running: Iterable[Planned]) -> list[Planned]:
        """Those of the running runs that the study gives up at a new epoch."""
        return [run for run in running if self._report(run)]

    def tell(self, run: Planned, how: str) -> None:
        """The score of a run is its own net's on validation at its best epoch, as a mean over seeds."""
        self._report(run)  # what others are compared with depends on no look
        scores = {row["seed"]: row[self.watched] for row in self._rows(run, "test")}
        trial, states = self.open.pop(run.id), self.optuna.trial.TrialState
        if how == "finished" and scores:
            self.study.tell(trial, sum(scores.values()) / len(scores))
        else:
            self.study.tell(trial, state=states.PRUNED if how == "pruned" else states.FAIL)

    def _resume(self) -> None:
        """Takes the trials of earlier commands, if they are of this recipe, these settings and this space."""
        listed, trials = rows.facts(self.batch, "batch.json"), self.optuna.trial
        settings = {each["id"]: each["settings"] for each in listed.get("runs", [])}
        for id_ in listed.get("trials", settings):
            try:
                run = batch_file.planned(self.config, settings[id_])
                drawn = self._values(settings[id_], json.dumps)
                options = {"params": drawn, "distributions": self.distributions}
                waiting = trials.create_trial(state=trials.TrialState.WAITING, **options)
            except (ValueError, OSError, KeyError):
                continue
            if run.id == id_:
                self.study.add_trial(waiting)
                self._take(self.study.ask(self.distributions), run, state.look(run.folder).state)

    def _take(self, trial: Any, run: Planned, found: str) -> None:
        """A trial waits for its run; it fails if that was proposed before, as Optuna learns nothing new."""
        self.trials.append(run.id)
        if run.id in self.runs:
            self.study.tell(trial, state=self.optuna.trial.TrialState.FAIL)
            return
        self.runs[run.id], self.open[run.id] = run, trial
        if found in ("finished", "pruned"):
            self.tell(run, found)
        else:  # one that failed is tried again
            self.waiting.append(run)

    def _report(self, run: Planned) -> bool:
        """Tells the study of each new epoch of a run; whether it gives the run up."""
        trial, reported, hopeless = self.open[run.id], self.reported[run.id], False
        for row in self._rows(run, "epoch"):
            if row["seed"] == run.config.seed and row["epoch"] not in reported:
                reported.add(row["epoch"])
                trial.report(row[self.watched], row["epoch"])
                hopeless |= trial.should_prune()
        return hopeless

    def _distributions(self, corners: Sequence[Planned]) -> dict[str, Any]:
        kinds, found = self.optuna.distributions, {}
        for name, space in self.options.space.items():
            if isinstance(space, Range):
                kind = kinds.IntDistribution if space.whole else kinds.FloatDistribution
                found[name] = kind(*space.ends, log=space.log)
            else:
                choices = dict.fromkeys(json.dumps(corner.varied[name]) for corner in corners)
                found[name] = kinds.CategoricalDistribution(tuple(choices))
        return found

    def _values(self, values: Mapping[str, Any], converted: Callable[[Any], Any]) -> dict[str, Any]:
        """Settings as Optuna draws them, or back: choices as JSON, since it stores no list."""
        ranges = {name for name, space in self.options.space.items() if isinstance(space, Range)}
        return {name: value if name in ranges else converted(value) for name, value in values.items()}

    def _rows(self, run: Planned, event: str) -> list[dict[str, Any]]:
        """What the run's own net came to on validation."""
        return [
            row
            for row in rows.read(run.folder)
            if row.get("event") == event and row.get("net") in MAIN_NETS and self.watched in row
        ]
