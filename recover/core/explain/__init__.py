"""Any pasted text becomes findings with the rung that cures each and the fact behind; unknown lines are left alone."""

from recover.core.explain.told import Told
from recover.core.explain.whole import explain

__all__ = ["Told", "explain"]
