"""The base of all estimators: it starts a run, follows it, and keeps and saves the fitted model."""

from __future__ import annotations

import math
import os
import warnings
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt
import xarray as xr
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from dpdist.core.checks import COUNT, FLAG, Wanted, instance, is_number, shown
from dpdist.core.errors import ClusterLostError, InputError
from dpdist.core.randomness import generator
from dpdist.core.settings import check_settings, setting, settings_of
from dpdist.data import Source, as_source, source_like
from dpdist.data.columns import Names
from dpdist.data.files import located
from dpdist.execution import Backend, SerialBackend
from dpdist.execution.connecting import active_backend
from dpdist.inference.state import Info, State
from dpdist.runs.cadence import CHECKPOINT_SECONDS
from dpdist.runs.methods import METHODS, method_named
from dpdist.runs.preparing import Output, prepare
from dpdist.runs.progress import shown as shown_to_people
from dpdist.runs.run import Run
from dpdist.runs.specs import Spec
from dpdist.runs.specs.mixture import plain_start
from dpdist.runs.view import View, Viewable, card
from dpdist.storage.checkpoint import FINDINGS, AnyFitted, Asked, Generation, PredictorLike, ProblemLike, RunStore
from dpdist.storage.history import History
from dpdist.storage.importing import path_of_class


@dataclass(frozen=True, kw_only=True)
class Manner:
    """Parameters that control how a fit is displayed."""

    verbose: bool = setting(
        False,
        FLAG,
        "Whether a fit shows a progress bar with the remaining time and a line per lap, in terminals and notebooks.",
    )

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, kw_only=True)
class Starts(Manner):
    """Parameters that control how many fits are made and from which model each starts."""

    n_init: int = setting(
        1, COUNT, "Number of fits by ``fit``, each with another random seed; the one with the highest ELBO is kept."
    )
    warm_start: bool = setting(False, FLAG, "Whether a new fit of a fitted estimator starts from its clusters.")

    def seeds(self, seed: int) -> list[int]:
        """Seeds of the `n_init` fits; the first is `seed`."""
        return [seed, *(int(generator(seed, "n_init", fit).integers(2**31 - 1)) for fit in range(1, self.n_init))]


_SECONDS = Wanted(
    "a number of zero or more, or infinite",
    lambda value: (isinstance(value, float) and value == math.inf) or (is_number(value) and value >= 0),
    float,
)
#: A seed, a RandomState to draw one from, or None for NumPy's global generator, as in scikit-learn.
RandomState = int | np.random.RandomState | None
Asks = TypeVar("Asks", bound=Spec)


class Estimator(BaseEstimator, Viewable, Generic[Asks]):
    """Fitting by a :class:`Run`; subclasses name the spec and set the public attributes after each lap."""

    #: The spec whose fields are parameters of the estimator.
    _spec_type: type[Asks]
    #: The dataclass of the remaining parameters.
    _manner_type: ClassVar[type[Manner]] = Manner
    #: The stop reason of a model that is saved before its run ended.
    _broken_off: ClassVar[str] = "saved before the fit ended"
    _problem: ProblemLike
    _fitted: AnyFitted
    _history: History
    groups_: np.ndarray
    _rows: Source
    #: The choice of columns, if any, that the model's rows were read with.
    _chosen: Mapping[str, object] = MappingProxyType({})

    def prepare(
        self,
        x: object,
        checkpoint_path: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        backend: Backend | None = None,
        sample_weight: npt.ArrayLike | None = None,
        holdout: object = None,
    ) -> Run:
        """A run that is ready to iterate batch by batch: parameters checked, data summarised, checkpoint written.

        Parameters
        ----------
        x : data or a source
        checkpoint_path, overwrite, backend, sample_weight, holdout : as for :meth:`iter_fit`
        """
        spec = self.spec()
        method = method_named(spec.method, holdout)
        asked = None if checkpoint_path is None else self._asked(spec.random_state)
        places = {"data": path_of(x), **({} if holdout is None else {"holdout": path_of(holdout)})}
        output = Output(checkpoint_path, places, overwrite, asked)
        return prepare(method, spec, as_source(x, sample_weight), spec.limits, chosen_backend(backend), output)

    def iter_fit(
        self,
        x: object,
        y: object = None,
        *,
        sample_weight: npt.ArrayLike | None = None,
        holdout: object = None,
        checkpoint_path: str | os.PathLike[str] | None = None,
        checkpoint_seconds: float = CHECKPOINT_SECONDS,
        overwrite: bool = False,
        backend: Backend | None = None,
    ) -> Iterator[tuple[State, Info]]:
        """Fit and yield after each lap, or each round of a sequential pass; the caller's loop may break at any lap.

        Parameters
        ----------
        x, y, sample_weight : as for ``fit``, but no streams; documents have no weights
        holdout : held-out rows whose score is recorded in ``history_`` after each lap, optional; not for documents
        checkpoint_path : folder for checkpoints, optional. They are written before the first lap, at the end (also if
            the loop is left early), and in between as often as they take at most 3 % of the time
        checkpoint_seconds : longest time between two checkpoints, whatever they cost; 0 for one after every batch
        overwrite : whether to replace an existing run at `checkpoint_path`
        backend : where to run; default: the active Dask client, else this process

        Yields
        ------
        state, info : after each lap; the estimator is then fitted as of that lap. For online inference, the ELBO is
            that of the last mini-batch scaled to the corpus
        """
        seconds = _SECONDS.take("checkpoint_seconds", checkpoint_seconds)
        run = self.prepare(x, checkpoint_path, overwrite, backend, sample_weight, holdout)
        run.checkpoint_seconds = seconds
        yield from self.follow(run)

    def follow(self, run: Run) -> Iterator[tuple[State, Info]]:
        """Continue a run to its end; after every lap this estimator adopts its model."""
        yield from self._laps(run)
        getattr(self, "_predictor", None)  # cached now: scikit-learn requires that predict leaves __dict__ unchanged
        self._warn_of_the_end(run, 5)

    def adopt(
        self, problem: ProblemLike, fitted: AnyFitted | None, history: History, chosen: Mapping[str, object]
    ) -> None:
        """Hold the model of a lap as this estimator's own; `chosen` is the choice of columns of its rows."""
        assert fitted is not None, "a lap was finished"
        self._problem, self._fitted, self._history, self._chosen = problem, fitted, history, dict(chosen)
        for name in ("_predictor", "_rows", "labels_", "tree_", "groups_", "stability_"):
            self.__dict__.pop(name, None)
        self._show()

    @cached_property
    def _predictor(self) -> PredictorLike:
        """The model's predictor, built at the first access, because building it after every lap costs too much."""
        check_is_fitted(self)
        fitted = self._fitted
        predictor: PredictorLike = METHODS[self._problem.method].predictor(self._problem, fitted.total, fitted.ids)
        return predictor

    def spec(self) -> Asks:
        """The checked parameters that the model depends on."""
        parameters = self._parameters()
        own = {name: parameters[name] for name in settings_of(self._spec_type)}
        return self._spec_type(**{**own, "random_state": seed_of(parameters["random_state"])})

    def manner(self) -> Manner:
        """The other parameters, checked, which the spec does not hold."""
        given = self.get_params(deep=False)
        return self._manner_type(**{name: given[name] for name in settings_of(self._manner_type)})

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write the fitted model as a Zarr group that :func:`dpdist.load` reads."""
        check_is_fitted(self)
        store = RunStore.create(path, self._problem, dict(self._chosen), {}, overwrite, self._asked(self._problem.seed))
        fitted = self._fitted._replace(stop=self._fitted.stop or self._broken_off)
        found = {name: vars(self)[f"{name}_"] for name in FINDINGS if f"{name}_" in vars(self)}
        try:
            store.commit(Generation(fitted, self._predictor, self._history, findings=found))
        finally:
            store.release()

    @property
    def history_(self) -> xr.Dataset:
        """Measurements by lap, and every proposal of a move with its outcome."""
        check_is_fitted(self)
        return self._history.dataset()

    def view(self) -> View:
        check_is_fitted(self)
        fitted = self._fitted._replace(stop=self._fitted.stop or self._broken_off)
        label, tree = type(self).__name__, vars(self).get("tree_")
        if "groups_" in vars(self):
            label += f", cut to {int(self.groups_.max()) + 1} clusters"
        return View(label, self._problem, self._history, fitted, self._parameters(), self._chosen, tree=tree)

    def _html_repr(self) -> str:
        """A card of the fitted model, above scikit-learn's diagram of the parameters."""
        found = card(self.view()) if self.__sklearn_is_fitted__() else ""
        return found + str(super()._html_repr())

    @abstractmethod
    def _show(self) -> None:
        """Set the public attributes of the fitted model."""

    def _laps(self, run: Run) -> Iterator[tuple[State, Info]]:
        """As :meth:`follow`, but without a warning if the fit did not converge."""
        try:
            with shown_to_people(run, self.manner().verbose) as show:
                for step in run:
                    show(step)
                    if step.info is not None:
                        self.adopt(run.problem, run.fitted, run.history, run.chosen)
                        self._rows = run.source
                        yield step.state, step.info
        except ClusterLostError:  # this process does not continue the run
            run.leave()
            raise

    def _warn_of_the_end(self, run: Run, level: int) -> None:
        """Emit a ConvergenceWarning if a limit ended the fit; `level` is the stack level of the user's line."""
        if run.warning is not None:
            warnings.warn(run.warning, ConvergenceWarning, stacklevel=level)

    def _show_columns(self, columns: int, names: Names | None) -> None:
        """Set ``n_features_in_``, and ``feature_names_in_`` if the columns have names."""
        self.n_features_in_ = columns
        self.__dict__.pop("feature_names_in_", None)
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)

    def _rows_like_fitted(self, x: object, sample_weight: npt.ArrayLike | None = None) -> Source:
        """Rows with the columns of the fitted model, matched by name or by the choice of the fit; any if unfitted."""
        names = self._problem.names if self.__sklearn_is_fitted__() else None
        return source_like(x, names, self._chosen, sample_weight)

    def _asked(self, seed: int) -> Asked:
        """The estimator and its parameters, as a checkpoint stores them.

        A RandomState is stored as the `seed` drawn from it, and `initial` as :func:`plain_start` converts it.
        """
        parameters = self._parameters()
        if not isinstance(parameters["random_state"], Integral | None):
            parameters["random_state"] = seed
        if "initial" in parameters:
            parameters["initial"] = plain_start(parameters["initial"])
        return Asked(path_of_class(type(self)), parameters)

    def _parameters(self) -> dict[str, Any]:
        """The parameters; if `initial` is a fitted estimator, its predictor stands in for it."""
        parameters: dict[str, Any] = self.get_params(deep=False)
        start = parameters.get("initial")
        if isinstance(start, Estimator):
            if not start.__sklearn_is_fitted__():
                raise InputError(f"initial should be a fitted estimator; got {shown(start)}. Call its fit first.")
            parameters["initial"] = start._predictor
        return parameters

    def __sklearn_clone__(self) -> Self:
        """An unfitted estimator with the same parameters; an estimator given as `initial` stays fitted."""
        fresh: Self = super().__sklearn_clone__()
        start = self.get_params(deep=False).get("initial")
        return fresh.set_params(initial=start) if isinstance(start, Estimator) else fresh

    def __getstate__(self) -> dict[str, Any]:
        """All attributes except the rows; the history is copied, so that a copied estimator has its own."""
        state = {name: value for name, value in super().__getstate__().items() if name != "_rows"}
        if "_history" in state:
            state["_history"] = copy(state["_history"])
        return state

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_fitted")


def default_backend() -> Backend:
    """The active Dask client's workers, or this process if there is no client."""
    return active_backend() or SerialBackend()


def chosen_backend(backend: object) -> Backend:
    """The given backend, or the default for None; raises :class:`InputError` if `backend` is not a Backend."""
    if backend is None:
        return default_backend()
    wanted = instance("a backend of dpdist.execution, or None for the default", Backend)
    return wanted.take("backend", backend)


def path_of(x: object) -> str | None:
    """The absolute path or URL of data given by path; None for arrays."""
    return located(x) if isinstance(x, str | os.PathLike) else None


def seed_of(random_state: object) -> int:
    """`random_state`, with scikit-learn's meaning, as one integer seed."""
    if isinstance(random_state, int | np.integer) and not isinstance(random_state, bool) and random_state >= 0:
        return int(random_state)
    if not (random_state is np.random or isinstance(random_state, np.random.RandomState | None)):
        raise InputError(
            f"random_state should be a whole number from 0 on, a numpy RandomState or None; got {shown(random_state)}."
        )
    return int(check_random_state(random_state).randint(2**31 - 1))
