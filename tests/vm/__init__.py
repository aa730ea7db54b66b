"""Real kernels under QEMU: what namespaces cannot show (D state, boot ids, vfio, resets) is shown here, or nowhere.

    with Machine.up(folder, KIND) as vm:      # KIND: guest.GUEST or node.NODE; blocks until sshd answers
        vm.shell()                            # a recover.edge SshShell into it
        vm.qmp.run("system_reset")            # or vm.power.stop(174): the hooks of tests/lab/pve

No image is needed: an initramfs of busybox and a few modules mounts this machine's own root read-only over 9p, under a
tmpfs. No KVM is needed either: everything runs by emulation (TCG), about 10 s from start to login on two cores.
"""
