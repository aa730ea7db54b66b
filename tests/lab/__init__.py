"""A GPU guest on a Proxmox node without GPU and without Proxmox: namespaces, a fake driver, a real HTTPS API."""
