"""``dpdist doctor``: what is wrong with a cluster before a run finds out, and what to do about it.

Facts are gathered apart from judging them: :mod:`facts` asks scheduler and workers, :mod:`judgements` turns values into
findings; :mod:`security` and :mod:`store` do both for certificates and for a run's place and data.
"""

from dpdist.cluster.doctor.command import doctor, examine
from dpdist.cluster.doctor.findings import Finding, Level

__all__ = ["Finding", "Level", "doctor", "examine"]
