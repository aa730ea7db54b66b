"""One fault of a simulated machine, as data: what is wrong with it and what cures it."""

from __future__ import annotations

from dataclasses import dataclass

from recover.model.contact import Failure
from recover.model.gpu import Condition
from recover.model.verdict import Scope


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with the machine, as data. Scopes say what cures it; None: nothing does.

    `workers`: healthy | dead | dead-leader | hung | orphaned | loading | none. `vram`: MiB per GPU that no process
    holds. `ram`: MiB that nobody owns. `release_s`: how long memory falls after SIGKILL.
    """

    name: str
    about: str
    workers: str = "dead"
    ignores_term: bool = False
    unkillable: bool = False
    release_s: float = 0.0
    vram: int = 0
    vram_cure: Scope | None = Scope.GPU
    ram: int = 0
    ram_cure: Scope | None = Scope.VM
    gpu_condition: Condition = Condition.ANSWERS  # of GPU 0
    gpu_cure: Scope | None = Scope.VM
    mute: Failure | None = None
    agent_silent: bool = False
    supervised: bool = False  # a systemd unit starts the workers again when they die
    comes_back_sick: bool = False  # and the new ones fail the same way
    vm_status: str = "running"
    lock: str = ""
    wrong_vm: bool = False
    stop_lies: int = 0  # so many stops end OK while the VM runs on
    start_fails: int = 0  # so many starts fail
    stop_unclear: int = 0  # so many stops are done, yet the answer is lost
    denied: tuple[str, ...] = ()  # parts of the look that are denied: "gpus", "processes", "hypervisor"
    old_xid: int = 0  # an Xid from days ago in the kernel log
    remap_failed: bool = False
    reboot_hangs: bool = False  # the guest's shutdown never ends
    new_host_key: bool = False  # it comes back from a reboot with another SSH host key
    inhibitor: str = ""  # who forbids a shutdown
    leftovers: int = 0  # MiB of shared memory of a dead owner, in one file per GPU
    leftovers_open: bool = False  # somebody opens them between the look and the act
    ghost: bool = False  # every GPU says 100 % with nothing on it
    ghost_cure: Scope | None = Scope.GPU
    driver_fails: bool = False
    driver_cure: Scope | None = Scope.GUEST
    unload_stuck: bool = False  # the module's unload never comes back
    mps: bool = False  # the ranks are clients of an MPS server
    criu: bool = False  # the ranks were restored by CRIU
    kept_dead: bool = False  # a script outside of the group started it and never reaps it
    fabric: bool = False  # a fabric manager runs
    reset_fails: int = 0  # so many GPU resets leave the GPUs in a failed state until the guest boots
    respawns: bool = False  # something that nobody sees starts the same server whenever it ends
    host: bool = False  # a root shell on the node is configured
    pci_cure: str = "flr"  # the mildest reset that cures what only HOST_DEVICE cures: flr | bus | rescan
    pci_gives_up: bool = False  # the first reset on the node loses the device for good
    pci_hangs: str = ""  # this kind of reset never comes back
    pci_holder: str = ""  # another process of the node has GPU 0's group open
    pci_off: str = ""  # GPU 0 is off the node's bus; a rescan finds it ("found") or not ("gone")
    container: bool = False  # the guest is an LXC container: see simulated_container
    neighbour: str = ""  # another container that runs and is given GPU 0
    stop_hangs: bool = False  # LXC's stop never ends
    container_lost: bool = False  # the container lost its devices' permissions: NVML says unknown error
