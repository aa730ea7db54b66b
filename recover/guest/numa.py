"""What a Proxmox node's NUMA nodes have of huge pages: plain counters of sysfs, read and never written.

Documentation/admin-guide/mm/hugetlbpage.rst: surplus pages go back to the kernel when they are let go, not to the pool.
"""

import re

from recover.guest.wire import at, emit, listdir, read_or, whole

NODES = "/sys/devices/system/node"
_NODE, _SIZE = re.compile(r"^node(\d+)$"), re.compile(r"^hugepages-(\d+)kB$")


def tell() -> None:
    rows = []
    for name in listdir(at(NODES)):
        node = _NODE.match(name)
        folder = "%s/%s/hugepages" % (at(NODES), name)
        for pool in listdir(folder) if node else []:
            size = _SIZE.match(pool)
            counts = [whole(read_or("%s/%s/%s_hugepages" % (folder, pool, key)).strip(), None)
                      for key in ("nr", "free", "surplus")]  # fmt: skip
            if node and size and None not in counts:
                rows.append({"node": int(node.group(1)), "kib": int(size.group(1)), "all": counts[0], "free": counts[1],
                             "surplus": counts[2]})  # fmt: skip
    emit("hugepages", list=rows)
