# SPDX-License-Identifier: AGPL-3.0-or-later
"""A Proxmox API that answers like the real one, over real HTTPS, and is never imported by `recover/`.

Three ways in, one behaviour:

* in-process:  ``with PveServer(config, directory, hooks) as pve: ...``        (`server.PveServer`)
* a process:   ``python -m tests.lab.pve.server --config FILE``                  (ends on SIGTERM or op ``stop``)
* its control: ``Control(directory).call("state")``                             (`control.Control`, stdlib only)


CONFIGURATION (a dict, or a .json / .toml file; every key is optional unless marked *)
-------------------------------------------------------------------------------------
``directory``*    folder for everything the server writes (given to PveServer directly when in-process)
``host``          "127.0.0.1";  ``port`` 0 (a free one);  ``listeners`` 1 (more = the same API on further free ports)
``certificate``   "good" | "expired" | "wrong-host"
``release``       "9.2";  ``version`` "9.2.6"
``time_scale``    real seconds per PVE second, 0.05. Scales the waits that belong to PVE (10 s flock, 3 s before a
                  401, 60 s shutdown time-out, HA rounds, start_secs/stop_secs), never the hooks and never a
                  fault's ``seconds``
``quorate``       true
``error_message`` true; false = http-server < 5.2, error bodies without ``message``
``cluster_name``  "lab"; null = a standalone node (no cluster row in /cluster/status)
``token``         {"id": "gpu-recover@pve!oncall", "secret": made up if absent, "privsep": true}
``grants``        [{"who": "gpu-recover@pve", "path": "/vms", "privs": ["VM.Audit"], "propagate": true}, ...]
                  replaces the default (the least-privilege recipe, for the user and its token). With privsep a token
                  holds what user AND token have; the deepest path replaces what is inherited
``hooks``         {"command": ["argv", ...], "timeout_s": 300}: run as argv + [action, vmid] with action start | stop |
                  reset | shutdown. Exit 0 = done (shutdown: the guest obeyed), 1 = shutdown not obeyed, else = failed.
                  What the hook starts lives on; at the server's end a hook still running gets SIGTERM (only itself).
                  In-process an object with those four methods is passed instead (`hooks.PowerHooks`)
``nodes``         [{"name": "pve1", "online": true, "memory_mib": 2457600, "used_mib": 24576, "uptime_s": 8640000,
                   "ahead_s": 0 (its clock before ours: its tasks have that clock's times), "pci": [DEVICE, ...]}]
                  used_mib is what the host itself uses; the RAM of running VMs (and of zombies) comes on top
``vms``           [VM, ...] below
``cts``           [CT, ...] below
``mappings``      [{"id": "gpu0", "description": "", "map": ["id=10de:2bb5,iommugroup=14,node=pve1,path=0000:01:00.0"]}]
``tasks``         [{"type": "vzdump", "vmid": 101, "node": "pve1", "user": "root@pam", "age_s": 300,
                    "status": "running" | exit status, "log": ["..."]}]
``faults``        [FAULT, ...] below

DEVICE  {"bdf": "0000:01:00.0", "vendor": "10de", "device": "2bb5", "class": "0302", "iommugroup": 14,
         "name": "GB202GL [...]", "vendor_name": "NVIDIA Corporation", "subsystem": "10de:204b",
         "reset": "ok" | "fails" (warning lines in the start log), "gone": false (fell off the bus)}

VM      {"vmid"*: 174, "name"*: "node-174", "node": "pve1", "memory_mib": 1024, "status": "running" | "stopped",
         "qmpstatus": as PVE (running, paused, prelaunch, internal-error, io-error, ...), "uptime_s": 86400,
         "lock": null, "tags": "gpu;prod", "ha": null | "started" | "stopped" | "error" | "ignored" | "disabled",
         "ha_node": null (where HA starts it next),
         "agent": "none" | "answers" | "hangs" | "stalls" (ping answers, commands time out) | "not-running",
         "template": false, "protection": false, "onboot": true, "pool": null,
         "smbios_uuid": "...", "mac": "BC:24:11:00:01:74",
         "hostpci": [DEVICE | "0000:01:00.0,pcie=1" | "mapping=gpu0,pcie=1", ...]  (a DEVICE is added to its node),
         "config": {"any": "other config key"}, "pending": {"cores": "8", "net1": null (= delete)},
         "start_secs": 1, "stop_secs": 1, "obeys_shutdown": true (asked only when the hook says nothing),
         "stop_how": "quit" | "sigterm" | "sigkill" | "zombie" | "still-runs",
         "zombie": false (API says stopped, QEMU still holds RAM and devices; a start then ends
                   `timeout waiting on systemd`)}

CT      {"vmid"*: 200, "name"*: "ct-200", "node": "pve1", "status": "running" | "stopped", "lock", "tags", "ha", "pool",
         "template", "config": {"dev0": "/dev/nvidia0", ...}, "pending": {}, "pid", "shutdown_secs", "start_secs",
         "stop_secs", "start_error": null,
         "hangs": false (a process of it takes no SIGKILL: a vzstop runs until it is false again)}

FAULT   {"kind"*: ..., "times": 1 (null = for ever), "skip": 0 (let so many through first), "id": "any name"}
  on an HTTP call, matched by "method" (any if absent) and "path" (fnmatch on the path after /api2/json), or by the
  short form "action": "start" + "vmid": 174 = POST on its status/start; "during": "qmstart" = only while a task of
  that type runs for "vmid":
    "http"    status (596), message ("Connection timed out"), "when": "before" (nothing is done) | "after" (the call is
              carried out, its task runs on, and only the answer is lost: the case that must be reconciled)
    "cut"     the connection is dropped, same "when"
    "slow"    "seconds" real seconds late
    "page"    200 with a page of HTML, as a portal in between gives it, same "when"
    "raw"     status, "body" (surrogates stand for bytes), "content_type", "headers": instead of the answer
    "rewrite" "rewrites": [[["keys", "within", "data"], value], ...]: the real answer with other values; a list is
              entered by itself, in each of its rows
  on a task, matched by "action" (start | stop | shutdown | reset | reboot) and "vmid" (any if absent):
    "task-error"    message, "when": "before" the act | "after" it was done
    "kvm-timeout"   start only: ends `start failed: command '/usr/bin/kvm ...' failed: got timeout`; "comes_up": false |
                    true (the VM runs all the same); "seconds" real seconds before that
    "reset-warning" start only: the two log lines of a failed sysfs reset, for "bdf" or each of the VM's devices; OK
    "stop"          stop only: "how" as in stop_how
    "flock"         ends `can't lock file '/var/lock/qemu-server/lock-174.conf' - got timeout`
    "hang"          stays `running` until it is deleted or killed
    "killed"        ends `unexpected status`, nothing done
    "warnings"      "count": 1: ends `WARNINGS: 1`, done
    "nothing"       ends OK, nothing done

FILES in ``directory``: ``server.json`` {"pid", "host", "port", "url", "urls", "ca_file", "fingerprint", "token_id",
"secret_file", "control"} (written last, atomically: its presence means "ready"), ``secret`` (0600), ``ca.pem``,
``server.pem``, ``server.key``, ``control.sock``, ``requests.jsonl`` (one object per request, also by op "requests").


CONTROL PROTOCOL: unix socket ``control.sock``; a line of JSON in, a line of JSON out, any number per connection.
------------------------------------------------------------------------------------------------------------------
in  {"op": NAME, ...arguments}     out  {"ok": true, "result": ...} | {"ok": false, "error": "text"}

``ping``                            -> "pong"
``state``                           -> {"vms": {"174": {...}}, "cts", "nodes": {...}, "tasks": [...], "faults": [...],
                                       "quorate", "requests": how many}
``requests``  [since=0]             -> [{"n", "time", "method", "path", "params", "status", "fault"}] with n > since
``inject``    fault=FAULT           -> its id
``clear``     [id]                  -> how many faults were removed (all without id)
``vm``        vmid, set={...}       -> the VM as in ``state``; keys as in VM (status, lock, agent, node, ha, pending,
                                       ...); "config": {...} is merged, null deletes a key. No hook is called.
``ct``        vmid, set={...}       -> the container as in ``state``; keys as in CT
``device``    node, bdf, set={...}  -> the device (e.g. {"gone": true}, {"reset": "fails"})
``node``      name, set={...}       -> online, memory_mib, used_mib, uptime_s
``quorum``    value=bool
``deny``      priv, [path="/"]      takes a privilege away below a path; ``allow`` (same arguments) gives it back
``token``     [secret] [id]         replaces the secret (the old one gets 401); ``revoke``=true: every call gets 401
``hold-flock`` vmid, [seconds]      another process holds the VM's lock file;  ``release-flock`` vmid
``task``      as in ``tasks``       -> UPID of a foreign task;  ``end-task`` upid, [status="OK"]
``died``      vmid                  QEMU is gone from one moment to the next (guest power-off, crash); HA may restart it
``destroy``   vmid                  the guest and its configuration are gone
``listener``  index, up=bool        an address of the API goes away (refused, connections dropped) or comes back
``stop``                            ends the server process
"""

from __future__ import annotations
