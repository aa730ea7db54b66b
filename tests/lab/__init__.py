"""A GPU guest on a Proxmox node without GPU and without Proxmox: namespaces, a fake driver below the real pynvml, a real HTTPS API."""
