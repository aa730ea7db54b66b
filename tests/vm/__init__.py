"""Real kernels under QEMU: what namespaces cannot show (D state, boot ids, vfio, resets) is shown here, or nowhere.

    with Machine.up(folder, kinds.guest(folder)) as vm:      # or kinds.node(); blocks until sshd answers
        vm.shell()                      # a recover.edge SshShell into it
        vm.hold_read()                  # the next read of its disk hangs, until vm.release_read()
        gpu.state(folder)               # its GPU, seen from outside
        vm.reset(), vm.stop()           # or over the API: power.api(vm, ...)

`kinds.systemd()` boots the machine's own systemd as pid 1, with logind, a user's manager and units of the lab's alone.

No image is needed: an initramfs of busybox and a few modules mounts this machine's own root read-only over 9p, under a
tmpfs. No KVM is needed either: everything runs by emulation (TCG), about 7 s from start to login.
"""
