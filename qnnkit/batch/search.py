"""Which run comes next: those of a list in order, or those that Optuna proposes from the results so far."""

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
    """The runs of a batch without a sampler, in their order."""

    def __init__(self, config: BatchConfig, batch: Path, runs: Sequence[Planned], score: Score):
        self.config, self.batch, self.score = config, batch, score
        self.runs = {run.id: run for run in runs}
        self.trials: list[str] = []
        """Of a sampler's proposals, the ids of their runs; a run may be proposed twice."""
        self.waiting = deque(run for run in runs if not self.is_done(run))
        self.write()

    def is_done(self, run: Planned) -> bool:
        """Whether a run has its result, by the criteria and with the notebooks that the batch asks for."""
        kept, words = rows.facts(run.folder, "config.json"), [word.partition("=")[0] for word in run.words]
        holds = all(kept.get(name) == getattr(run.config, name) for name in CRITERIA if name in words)
        notebooks = {*self.config.notebooks}
        made = {path.stem for path in (run.folder / "notebooks").glob("*.ipynb")} or notebooks  # or without
        return (run.folder / "result.json").exists() and holds and notebooks <= made

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
        return len(self.waiting)

    def next(self) -> Planned | None:
        """The run to begin; None if there is none."""
        return self.waiting.popleft() if self.waiting else None

    def hopeless(self, run: Planned) -> bool:
        """Whether a running run is to be stopped."""
        return False

    def tell(self, run: Planned, how: str) -> None:
        """Notes how a run has ended: "finished", "failed" or "pruned"."""


class Study(Listed):
    """The runs of an Optuna study in memory, which batch.json and the run folders make again."""

    def __init__(self, config: BatchConfig, batch: Path, corners: Sequence[Planned], score: Score):
        import optuna

        assert config.optuna is not None  # as the engine has seen
        self.optuna, self.options = optuna, config.optuna
        self.watched = f"validation_{score.on_validation}"
        self.open: dict[str, Any] = {}  # run id -> the trial that waits for its end
        self.reported: dict[str, set[int]] = defaultdict(set)  # run id -> epochs
        self.distributions = self._distributions(corners)
        pruner = getattr(optuna.pruners, PRUNERS[self.options.pruner])
        bounds = (self.options.startup_trials, self.options.warmup_epochs)
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # the batch's own table tells of each run
        self.study = optuna.create_study(
            direction="maximize" if score.larger else "minimize",
            pruner=pruner(*bounds) if self.options.pruner == "median" else pruner(),
        )
        listed = rows.facts(batch, "batch.json")
        super().__init__(config, batch, (), score)
        settings = {each["id"]: each["settings"] for each in listed.get("runs", [])}
        for id_ in listed.get("trials", settings):  # of earlier commands; another recipe's or space's fail
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
        """The next proposal that has to be run."""
        sampler = getattr(self.optuna.samplers, SAMPLERS[self.options.sampler])
        while not self.waiting and self.left:
            # One sampler per trial: a resumed study draws what an undisturbed one would have drawn.
            self.study.sampler = sampler(seed=self.options.seed + len(self.trials))
            self._take()
            self.write()
        return super().next()

    def _take(self, run: Planned | None = None) -> None:
        """Asks for a trial, which waits for its run; it fails if that was proposed before."""
        trial = self.study.ask(self.distributions)
        run = run or batch_file.planned(self.config, self._values(trial.params, json.loads))
        self.trials.append(run.id)
        if run.id in self.runs:  # Optuna learns nothing new
            self.study.tell(trial, state=self.optuna.trial.TrialState.FAIL)
            return
        self.runs[run.id], self.open[run.id] = run, trial
        if (pruned := state.look(run.folder).state == "pruned") or self.is_done(run):
            self.tell(run, "pruned" if pruned else "finished")
        else:  # one that failed is tried again
            self.waiting.append(run)

    def hopeless(self, run: Planned) -> bool:
        """Tells the study of each new epoch of a run; whether it gives the run up."""
        trial, reported, hopeless = self.open[run.id], self.reported[run.id], False
        for row in self._rows(run, "epoch"):
            if row["seed"] == run.config.seed and row["epoch"] not in reported:
                reported.add(row["epoch"])
                trial.report(row[self.watched], row["epoch"])
                hopeless |= trial.should_prune()
        return hopeless

    def tell(self, run: Planned, how: str) -> None:
        """The score of a run is its own net's on validation at its best epoch, as a mean over seeds."""
        self.hopeless(run)  # what others are compared with depends on no look
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
        """Settings as Optuna draws them, or back: choices as JSON, since it stores no list."""
        ranges = {name for name, space in self.options.space.items() if isinstance(space, Range)}
        return {name: value if name in ranges else converted(value) for name, value in values.items()}

    def _rows(self, run: Planned, event: str) -> Iterable[dict[str, Any]]:
        """What the run's own net came to on validation."""
        logged = (row for row in rows.read(run.folder) if row["event"] == event and row["net"] in MAIN_NETS)
        return [row for row in logged if self.watched in row]
