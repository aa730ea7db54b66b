"""Which scope cures what an Xid reports; the driver's own recovery action outranks this. Codes: `xid_table`."""

from __future__ import annotations

import re

from recover.core.xid_table import XIDS
from recover.model.verdict import Scope

_BUCKET_CURE = {
    "RESET_GPU": Scope.GPU,
    "WORKFLOW_XID_48": Scope.GPU,
    "WORKFLOW_NVLINK_ERR": Scope.GPU,  # a reset clears it
    "RESTART_VM": Scope.VM,
    "RESTART_BM": Scope.VM,  # from a guest's point of view: the reset of the device at VM stop and start
}
# Codes for which the bucket alone would mislead, or that have none.
_CURES: dict[int, Scope | None] = {
    54: None,  # auxiliary power is missing: for a person's hands
    64: None,  # a reset "works" for a while, and the memory is still bad (awsome-distributed-ai 1190)
    167: Scope.VM,  # fatal PCIe time-out: like 79
    169: Scope.GPU,
    171: Scope.GPU,
    172: Scope.GPU,
    173: Scope.VM,
    175: Scope.GPU,  # the driver marks the GPU for reset
}
_NVLINK5 = range(144, 151)  # the severity word in the line decides
_FATAL = re.compile(r"\bFatal\b")


def is_fault(code: int, text: str = "") -> bool:
    """Whether an Xid says that the GPU itself, not only a program, needs something."""
    if code in _CURES:
        return True
    if code in _NVLINK5:
        return _FATAL.search(text) is not None
    return code in XIDS and XIDS[code].bucket in _BUCKET_CURE


def cure(code: int, text: str = "") -> Scope | None:
    """The smallest scope that cures a fault; None where no step can."""
    if not is_fault(code, text):
        return None
    if code in _CURES:
        return _CURES[code]
    return Scope.GPU if code in _NVLINK5 else _BUCKET_CURE[XIDS[code].bucket]
