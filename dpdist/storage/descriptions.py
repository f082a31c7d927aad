"""Arrays in which a family describes its components, stored as variables beside a model."""

from __future__ import annotations

import numpy as np
import zarr

from dpdist.core.errors import InputError
from dpdist.core.stored import Stored
from dpdist.inference.transform import Description
from dpdist.storage.arrays import Entry, put_all

#: Declarations of the arrays with these names.
KNOWN = {
    "mean": Stored(("component", "column"), "posterior mean of a component's mean"),
    "covariance": Stored(("component", "column", "column_2"), "posterior mean of a component's covariance"),
    "variance": Stored(("component", "column"), "posterior mean of a component's variances"),
    "mean_variance": Stored(("component", "column"), "posterior variance of a component's mean"),
    "probability": Stored(("component", "column"), "posterior mean of a component's probabilities"),
    "rate": Stored(("component", "column"), "posterior mean of a component's rates"),
}
#: Names that described arrays cannot have, because models store arrays of these names.
TAKEN = frozenset({"component", "id", "ids", "weight", "stats", "entropy", "table", "overlap"})


def check_description(found: Description, features: int, describer: object) -> None:
    """Raise :class:`InputError` unless described arrays can be stored beside a model, with consistent dimensions.

    Parameters
    ----------
    found : the described arrays
    features : F, columns of the components' statistics
    describer : object whose `describe` is named in the message
    """
    sizes = {"feature": features}
    for name, (dims, values) in found.items():
        wrong = _wrong(name, dims, values, sizes)
        if wrong:
            raise InputError(f"{type(describer).__name__}.describe: {wrong}")
        sizes.update(zip(dims, values.shape, strict=True))


def _wrong(name: str, dims: tuple[str, ...], values: np.ndarray, sizes: dict[str, int]) -> str:
    """An error message for a described array, given the sizes of the earlier dimensions; empty if it is valid."""
    if not name.isidentifier() or name in TAKEN:
        return f"the name of an array should be an identifier other than {', '.join(sorted(TAKEN))}; got '{name}'."
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "biuf":
        return f"{name} should be an array of numbers; got {type(values).__name__}."
    if len(dims) != values.ndim or len(set(dims)) != len(dims) or dims[:1] != ("component",):
        return (
            f"{name} should have a different name for each of its {values.ndim} dimensions, with 'component' first; "
            f"got {dims}."
        )
    other = [dim for dim, size in zip(dims, values.shape, strict=True) if sizes.get(dim, size) != size]
    if other:
        return f"dimension '{other[0]}' of {name} has another length in other arrays; rename this dimension."
    return ""


def described_as(name: str, dims: tuple[str, ...]) -> Stored:
    """The declaration of a described array: from :data:`KNOWN` if it has the same dimensions, otherwise a generic
    one."""
    listed = KNOWN.get(name)
    own = Stored(dims, f"{name} of a component, from its likelihood")
    return listed if listed is not None and listed.dims == dims else own


def write_description(group: zarr.Group, found: Description) -> None:
    """Store described arrays in a group."""
    put_all(group, [Entry(name, values, described_as(name, dims)) for name, (dims, values) in found.items()])
