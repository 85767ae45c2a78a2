"""Queues of a batch's runs: a list in order, or runs that Optuna proposes from the results so far."""

from __future__ import annotations

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
from qnnkit.settings import CRITERIA, MAIN_NETS
from qnnkit.stats import Score

PRUNERS = {"none": "NopPruner", "median": "MedianPruner", "halving": "SuccessiveHalvingPruner"}
SAMPLERS = {"tpe": "TPESampler", "random": "RandomSampler"}


class Listed:
    """The runs of a batch without a sampler, in order."""

    def __init__(self, config: BatchConfig, batch: Path, runs: Sequence[Planned], score: Score):
        self.config, self.batch, self.score = config, batch, score
        self.runs = {run.id: run for run in runs}
        self.trials: list[str] = []
        """Ids of the runs that a sampler has proposed; a run may be proposed twice."""
        self.waiting = deque(run for run in runs if not self.is_done(run))
        self.write()

    def is_done(self, run: Planned) -> bool:
        """Whether a run has its result, with the criteria and notebooks that the batch requests."""
        config, names = rows.facts(run.folder, "config.json"), {word.split("=")[0] for word in run.words}
        same = all(config.get(name) == getattr(run.config, name) for name in CRITERIA if name in names)
        wanted = {*self.config.notebooks}
        # A run that was trained without notebooks has none of them.
        executed = {path.stem for path in (run.folder / "notebooks").glob("*.ipynb")} or wanted
        return (run.folder / "result.json").exists() and same and wanted <= executed

    def write(self) -> None:
        """Writes the runs of the batch, and the score by which they are compared, to batch.json."""
        runs = [
            {"id": run.id, "folder": os.path.relpath(run.folder, self.batch), "settings": run.varied}
            for run in self.runs.values()
        ]
        content = {"name": self.config.name, "recipe": self.config.recipe, "score": asdict(self.score)}
        content |= {"trials": self.trials} if self.trials else {}
        workspace.write_json(self.batch / "batch.json", content | {"runs": runs})

    @property
    def left(self) -> int:
        """Number of runs that are not started yet."""
        return len(self.waiting)

    def next(self) -> Planned | None:
        """Returns the next run to start; None if there is none."""
        return self.waiting.popleft() if self.waiting else None

    def hopeless(self, run: Planned) -> bool:
        """Whether a running run should be stopped."""
        return False

    def tell(self, run: Planned, how: str) -> None:
        """Records how a run has ended: "finished", "failed" or "pruned"."""


class Study(Listed):
    """The runs of an Optuna study in memory, which is rebuilt from batch.json and the run folders."""

    def __init__(self, config: BatchConfig, batch: Path, corners: Sequence[Planned], score: Score):
        import optuna

        assert config.optuna is not None  # checked by the engine
        self.optuna, self.options = optuna, config.optuna
        self.watched = f"validation_{score.on_validation}"
        self.open: dict[str, Any] = {}  # run id -> its unfinished trial
        self.reported: dict[str, set[int]] = defaultdict(set)  # run id -> epochs
        self.distributions = self._distributions(corners)
        pruner = getattr(optuna.pruners, PRUNERS[self.options.pruner])
        bounds = (self.options.startup_trials, self.options.warmup_epochs)
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # the batch itself prints each run
        self.study = optuna.create_study(
            direction="maximize" if score.larger else "minimize",
            pruner=pruner(*bounds) if self.options.pruner == "median" else pruner(),
        )
        listed = rows.facts(batch, "batch.json")
        super().__init__(config, batch, (), score)
        settings = {row["id"]: row["settings"] for row in listed.get("runs", [])}
        for id_ in listed.get("trials", settings):  # of earlier commands, if still in the space
            try:
                run = batch_file.planned(config, settings[id_])
                drawn = self._values(settings[id_], json.dumps)
                options: Any = {"params": drawn, "distributions": self.distributions}
                waiting = optuna.trial.create_trial(state=optuna.trial.TrialState.WAITING, **options)
            except (ValueError, OSError, KeyError):
                continue
            if run.id == id_:
                self.study.add_trial(waiting)
                self._take(run)
        self.write()

    @property
    def left(self) -> int:
        return len(self.waiting) + max(0, self.options.n_trials - len(self.trials))

    def next(self) -> Planned | None:
        """Returns the next proposal whose run is not done."""
        sampler = getattr(self.optuna.samplers, SAMPLERS[self.options.sampler])
        while not self.waiting and self.left:
            # One sampler per trial, so that a resumed study draws the same as an uninterrupted one.
            self.study.sampler = sampler(seed=self.options.seed + len(self.trials))
            self._take()
            self.write()
        return super().next()

    def _take(self, run: Planned | None = None) -> None:
        """Opens a trial and queues its run; a trial whose run was proposed before fails."""
        trial = self.study.ask(self.distributions)
        run = run or batch_file.planned(self.config, self._values(trial.params, json.loads))
        self.trials.append(run.id)
        if run.id in self.runs:  # Optuna learns nothing new
            self.study.tell(trial, state=self.optuna.trial.TrialState.FAIL)
            return
        self.runs[run.id], self.open[run.id] = run, trial
        if (pruned := state.look(run.folder).state == "pruned") or self.is_done(run):
            self.tell(run, "pruned" if pruned else "finished")
        else:  # a failed run is tried again
            self.waiting.append(run)

    def hopeless(self, run: Planned) -> bool:
        """Reports each new epoch of a run to the study; returns whether the study prunes the run."""
        trial, reported, hopeless = self.open[run.id], self.reported[run.id], False
        for row in self._rows(run, "epoch"):
            if row["seed"] == run.config.seed and row["epoch"] not in reported:
                reported.add(row["epoch"])
                trial.report(row[self.watched], row["epoch"])
                hopeless |= trial.should_prune()
        return hopeless

    def tell(self, run: Planned, how: str) -> None:
        """Reports the validation score of the run's main net at its best epoch, as a mean over seeds."""
        self.hopeless(run)  # reports all epochs, however often they were read before
        scores = {row["seed"]: row[self.watched] for row in self._rows(run, "test")}
        trial, states = self.open.pop(run.id), self.optuna.trial.TrialState
        if how == "finished" and scores:
            self.study.tell(trial, sum(scores.values()) / len(scores))
        else:
            self.study.tell(trial, state=states.PRUNED if how == "pruned" else states.FAIL)

    def _distributions(self, corners: Sequence[Planned]) -> dict[str, Any]:
        kinds, spaces = self.optuna.distributions, {}
        for name, space in self.options.space.items():
            if isinstance(space, Range):
                kind = kinds.IntDistribution if space.whole else kinds.FloatDistribution
                spaces[name] = kind(*space.ends, log=space.log)
            else:
                choices = dict.fromkeys(json.dumps(corner.varied[name]) for corner in corners)
                spaces[name] = kinds.CategoricalDistribution(tuple(choices))
        return spaces

    def _values(self, values: Mapping[str, Any], converted: Callable[[Any], Any]) -> dict[str, Any]:
        """Converts settings to Optuna's values or back: choices are JSON, since Optuna stores no lists."""
        ranges = {name for name, space in self.options.space.items() if isinstance(space, Range)}
        return {name: value if name in ranges else converted(value) for name, value in values.items()}

    def _rows(self, run: Planned, event: str) -> Iterable[dict[str, Any]]:
        """Returns the rows of the run's main net that have its validation score."""
        logged = (row for row in rows.read(run.folder) if row["event"] == event and row["net"] in MAIN_NETS)
        return [row for row in logged if self.watched in row]
