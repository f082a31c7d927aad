"""Errors with messages for users: what was expected, what was given, and what to do."""


class DpdistError(Exception):
    """Base of all errors that dpdist raises on purpose."""


class InputError(DpdistError, ValueError):
    """Data, a parameter or a file is invalid."""


class InputKindError(InputError, TypeError):
    """Data are not numeric."""


class CorruptDataError(DpdistError, ValueError):
    """Stored rows are damaged or missing."""


class PrecisionError(DpdistError, ArithmeticError):
    """A number could not be computed with the precision that the result needs."""


class CheckpointError(DpdistError, RuntimeError):
    """A checkpoint is missing or damaged, belongs to another run or has another format, or the data changed since."""


class OutputExistsError(DpdistError, FileExistsError):
    """An output path exists, and overwriting was not requested."""


class ClusterError(DpdistError, RuntimeError):
    """The cluster failed to finish a task in all tries."""


class ClusterLostError(ClusterError):
    """The cluster is gone, or no worker returned; the coordinator's state is intact and can continue on another
    cluster."""
