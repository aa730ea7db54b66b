"""What a text is, by its first line that says anything: a script may hold the texts of all the others."""

from __future__ import annotations

import re

from recover.core.budget import compose, manifest, systemd


def kind(text: str) -> str:
    """unit, compose, manifest; empty: a script or a command."""
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line and line[0] not in "#;"), "")
    if re.match(r"\[\w+\]|[A-Z]\w*\s*=", first) and systemd.is_unit(text):
        return "unit"
    if first == "---" or re.match(r"""["']?[\w.-]+["']?\s*:(?:\s|$)""", first):
        return "compose" if compose.is_compose(text) else "manifest" if manifest.is_manifest(text) else ""
    return ""
