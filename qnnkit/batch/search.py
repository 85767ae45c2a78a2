"""Which run comes next: those of a list in order, or those that an Optuna study proposes from the results."""

from __future__ import annotations

import hashlib
import json
import os
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from qnnkit import workspace
from qnnkit.batch import batch_file
from qnnkit.batch.batch_file import BatchConfig, Planned, Range
from qnnkit.runs import rows, state
from qnnkit.settings import MAIN_NETS
from qnnkit.stats import Score

GRACE = 5
"""Seconds after which a lock on the study counts as left behind: only one command works on a batch."""
PRUNERS = {"none": "NopPruner", "median": "MedianPruner", "halving": "SuccessiveHalvingPruner"}
SAMPLERS = {"tpe": "TPESampler", "random": "RandomSampler"}


class Listed:
    """The runs of a batch without a sampler, in their order."""

    unasked = 0  # that a sampler has yet to propose

    def __init__(self, config: BatchConfig, batch: Path, score: Score, runs: Iterable[Planned] = ()):
        self.config, self.batch, self.score = config, batch, score
        self.runs = {run.id: run for run in runs}
        self.waiting = deque(run for run in runs if not state.finished(run.folder))
        self.write()

    def write(self) -> None:
        """The runs that belong to the batch and what they are compared by, in its batch.json."""
        runs = [
            {"id": run.id, "folder": os.path.relpath(run.folder, self.batch), "settings": run.varied}
            for run in self.runs.values()
        ]
        content = {"name": self.config.name, "recipe": self.config.recipe, "score": asdict(self.score)}
        workspace.write_json(self.batch / "batch.json", content | {"runs": runs})

    @property
    def left(self) -> int:
        """How many runs are still to be handed out."""
        return len(self.waiting) + self.unasked

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
        import optuna

        assert config.optuna is not None  # as the engine has seen
        self.optuna, self.options = optuna, config.optuna
        self.watched = f"validation_{score.on_validation}"
        self.trials: dict[str, list[Any]] = {}  # run id -> trials that wait for it
        self.known: dict[str, str] = {}  # run id -> how it has ended
        self.reported: dict[int, set[int]] = defaultdict(set)  # trial -> epochs
        super().__init__(config, batch, score)
        self.study = self._study()
        self._resume()
        self.write()

    def next(self) -> Planned | None:
        """The next proposal that has to be run: one that was made before has been run, or is running."""
        while not self.waiting and self.unasked:
            self.unasked -= 1
            # One sampler per trial: a command that goes on draws what an undisturbed one would have drawn.
            number = len(self.study.get_trials(deepcopy=False))
            digest = hashlib.sha256(f"{self.options.seed} {number}".encode()).digest()
            sampler = getattr(self.optuna.samplers, SAMPLERS[self.options.sampler])
            self.study.sampler = sampler(seed=int.from_bytes(digest[:4]))
            trial = self.study.ask(self._distributions())
            self._take(trial, self._planned(trial.params))
            self.write()
        return super().next()

    def hopeless(self, running: Iterable[Planned]) -> list[Planned]:
        """Those of the running runs that the study gives up at a new epoch."""
        return [run for run in running if self._report(run)]

    def _report(self, run: Planned) -> bool:
        """Tells the study of each new epoch of a run; whether it gives the run up."""
        hopeless = False
        for row in self._rows(run, "epoch"):
            for trial in self.trials.get(run.id, ()) if row["seed"] == run.config.seed else ():
                if row["epoch"] not in self.reported[trial.number]:
                    self.reported[trial.number].add(row["epoch"])
                    trial.report(row[self.watched], row["epoch"])
                    hopeless |= trial.should_prune()
        return hopeless

    def tell(self, run: Planned, how: str) -> None:
        """The score of a run is its own net's on validation at its best epoch, as a mean over seeds."""
        self.known[run.id] = how
        self._report(run)  # what others are compared with depends on no look
        scores = {row["seed"]: row[self.watched] for row in self._rows(run, "test")}
        for trial in self.trials.pop(run.id, []):
            if how == "finished" and scores:
                self.study.tell(trial, sum(scores.values()) / len(scores))
            else:
                states = self.optuna.trial.TrialState
                self.study.tell(trial, state=states.PRUNED if how == "pruned" else states.FAIL)

    def _take(self, trial: Any, run: Planned) -> None:
        """A trial waits for its run, which is begun unless it runs or has ended."""
        trial.set_user_attr("run", run.id)
        self.runs.setdefault(run.id, run)
        running = run.id in self.trials
        self.trials.setdefault(run.id, []).append(trial)
        if state.finished(run.folder) or run.id in self.known:
            self.tell(run, self.known.get(run.id, "finished"))
        elif not running:
            self.waiting.append(run)

    def _resume(self) -> None:
        """Takes up the trials that a kill has cut off, and proposes anew those that failed."""
        states, storage = self.optuna.trial.TrialState, self.storage
        study_id, failed, again = storage.get_study_id_from_name(self.study.study_name), {}, set()
        self.unasked = self.options.n_trials
        for each in self.study.get_trials():
            whole = each.params.keys() == self.options.space.keys()
            if each.state == states.WAITING:
                again.add(each.user_attrs["run"])
            elif each.state == states.RUNNING and not whole:  # killed amid a proposal
                self.study.tell(each.number, state=states.FAIL)
            elif whole:
                run = self._planned(each.params)
                self.runs.setdefault(run.id, run)
                self.unasked -= each.state != states.FAIL
                if each.state == states.RUNNING:
                    self.reported[each.number] = set(each.intermediate_values)
                    id_ = storage.get_trial_id_from_study_id_trial_number(study_id, each.number)
                    self._take(self.optuna.trial.Trial(self.study, id_), run)
                elif each.state == states.FAIL:
                    failed[run.id] = each.params
                else:
                    self.known[run.id] = "pruned" if each.state == states.PRUNED else "finished"
        for id_ in failed.keys() - self.known.keys() - self.trials.keys() - again:
            self.study.enqueue_trial(failed[id_], user_attrs={"run": id_})

    def _study(self) -> Any:
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

        path = self.batch / "optuna.jsonl"
        content = path.read_bytes() if path.exists() else b""
        if content and not content.endswith(b"\n"):  # a kill amid a write must not spoil what follows
            workspace.write_bytes(path, content[: content.rfind(b"\n") + 1])
        lock = JournalFileOpenLock(str(path), grace_period=GRACE)
        self.storage = JournalStorage(JournalFileBackend(str(path), lock_obj=lock))
        bounds = (self.options.startup_trials, self.options.warmup_epochs)
        pruner = getattr(self.optuna.pruners, PRUNERS[self.options.pruner])
        # What a study may not change under the same name; n_trials, the sampler and the pruner may.
        asked = self.config.model_dump(mode="json", include={"recipe", "settings"})
        asked["space"] = self.options.model_dump(mode="json", include={"space"})
        digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
        return self.optuna.create_study(
            storage=self.storage,
            study_name=f"{self.config.name}-{digest[:12]}",
            direction="maximize" if self.score.larger else "minimize",
            pruner=pruner(*bounds) if self.options.pruner == "median" else pruner(),
            load_if_exists=True,
        )

    def _distributions(self) -> dict[str, Any]:
        kinds, found = self.optuna.distributions, {}
        for name, space in self.options.space.items():
            if isinstance(space, Range):
                kind = kinds.IntDistribution if space.whole else kinds.FloatDistribution
                found[name] = kind(*space.ends, log=space.log)
            else:  # as JSON: a choice may be a list, which Optuna does not store
                found[name] = kinds.CategoricalDistribution([json.dumps(value) for value in space])
        return found

    def _planned(self, drawn: dict[str, Any]) -> Planned:
        ranges = {name for name, space in self.options.space.items() if isinstance(space, Range)}
        varied = {name: value if name in ranges else json.loads(value) for name, value in drawn.items()}
        return batch_file.planned(self.config, varied)

    def _rows(self, run: Planned, event: str) -> list[dict[str, Any]]:
        """What the run's own net came to on validation."""
        return [
            row
            for row in rows.read(run.folder)
            if row.get("event") == event and row.get("net") in MAIN_NETS and self.watched in row
        ]
