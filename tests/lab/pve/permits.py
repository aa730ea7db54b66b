# SPDX-License-Identifier: AGPL-3.0-or-later
"""A token is never root@pam, holds what its user and it itself were given, and a refusal names path and privilege."""

from __future__ import annotations

from typing import Any

from fakepve import shapes
from fakepve.model import PveError
from fakepve.server import FORMATS

Grant = tuple[str, frozenset[str], bool]  # path, privileges, propagate

# The least-privilege recipe of the documentation.
RECIPE: tuple[Grant, ...] = (
    ("/vms", frozenset(("VM.Audit", "VM.PowerMgmt", "VM.GuestAgent.Audit", "Sys.Audit")), True),
    ("/nodes", frozenset(("Sys.Audit",)), True),
    ("/mapping/pci", frozenset(("Mapping.Audit",)), True),
    ("/", frozenset(("Sys.Audit",)), False),
)


class Permits:
    """Mixin over fakepve's permission model (pve-access-control 9: roles on a deeper path replace inherited ones)."""

    pools: dict[str, set[int]]
    apitokens: dict[str, str]
    version: str

    def _init_permits(self) -> None:
        self.grants: dict[str, list[Grant]] = {}
        self.privsep: dict[str, bool] = {}
        self.denied: set[tuple[str, str]] = set()
        self.revoked = False

    def give(self, who: str, path: str, privs: frozenset[str], propagate: bool = True) -> None:
        self.grants.setdefault(who, []).append((path.rstrip("/") or "/", privs, propagate))

    # --- who is calling

    def _authenticate(self, request: Any) -> str | None:
        """401 texts of PVE::AccessControl::verify_token; the delay and the empty body are added by the caller."""
        auth = request.headers.get("Authorization", "")
        if not auth.startswith("PVEAPIToken="):
            if "PVEAuthCookie" not in request.cookies and request.path not in [p + "/access/ticket" for p in FORMATS]:
                raise PveError(401, "No ticket")
            user: str | None = super()._authenticate(request)  # type: ignore[misc]
            return user
        token, _, secret = auth.removeprefix("PVEAPIToken=").partition("=")
        owner, _, name = token.rpartition("!")
        if token not in self.apitokens:
            raise PveError(401, f"no such token '{name}' for user '{owner}'")
        if self.revoked or self.apitokens[token] != secret:
            raise PveError(401, "invalid token value!")
        return str(token)

    # --- what it may

    def _held(self, who: str, path: str) -> frozenset[str]:
        privs: frozenset[str] = frozenset()
        depth = -1
        merged: dict[int, set[str]] = {}
        for granted, names, propagate in self.grants.get(who, ()):
            exact = granted == path
            above = granted == "/" or path.startswith(granted + "/")
            if exact or (above and propagate):
                level = 0 if granted == "/" else granted.count("/")
                merged.setdefault(level, set()).update(names)
                depth = max(depth, level)
        if depth >= 0:
            privs = frozenset(merged[depth])
        if path.startswith("/vms/"):
            vmid = int(path.split("/")[2])
            for pool, members in self.pools.items():
                if vmid in members:
                    privs |= self._held(who, "/pool/" + pool)
        return privs

    def _known(self, priv: str) -> bool:
        """Whether this release has the privilege: mappings came with 8; the agent's own ones with 9, for VM.Monitor."""
        release = int(self.version.partition(".")[0])
        if priv.startswith("VM.GuestAgent."):
            return release >= 9
        return release < 9 if priv == "VM.Monitor" else release >= 8 or not priv.startswith("Mapping.")

    def allowed(self, user: str, path: str, priv: str) -> bool:
        if user == "root@pam":
            return True
        if priv.startswith("VM.GuestAgent.") and not self._known(priv):
            priv = "VM.Monitor"  # what PVE 7 and 8 ask for at the agent's calls
        if not self._known(priv):
            return False
        if any(
            name == priv and (below == "/" or path == below or path.startswith(below + "/"))
            for below, name in self.denied
        ):
            return False
        owner, bang, _ = user.rpartition("!") if "!" in user.rpartition("@")[2] else (user, "", "")
        owner_has = owner == "root@pam" or priv in self._held(owner, path)
        if bang and self.privsep.get(user, True):
            return owner_has and priv in self._held(user, path)
        return owner_has

    def check_permissions(self, user: str | None, perms: Any, values: Any, declared: Any = None) -> None:
        """The schema's rule, but root only for the real root@pam login."""
        if user == "root@pam":
            return
        why: Any = "user != root@pam"
        if perms is not None and "check" in perms:
            granted, why = self._check(user, perms["check"], values, declared)  # type: ignore[attr-defined]
            if granted:
                return
        elif perms is not None and perms.get("user") in ("all", "world"):
            return
        if "VM.GuestAgent." in str(why) and not self._known("VM.GuestAgent.Audit"):
            why = str(why).partition(", ")[0] + ", VM.Monitor"
        raise PveError(403, f"Permission check failed ({why})" if why else "Permission check failed")

    async def _permissions(self, values: dict[str, Any], user: str) -> dict[str, dict[str, int]]:
        """GET /access/permissions: path -> privilege -> its propagate flag (a 0 is a privilege all the same)."""
        who = values.get("userid") or user
        paths = {path for name in (who, who.rpartition("!")[0] or who) for path, _, _ in self.grants.get(name, ())}
        paths |= {"/", "/vms", "/nodes", "/storage", "/access"}
        if values.get("path"):
            paths = {values["path"]}
        out: dict[str, dict[str, int]] = {}
        for path in sorted(paths):
            every = [priv for priv in (*shapes.PRIVILEGES, "VM.Monitor") if self._known(priv)]
            held = {priv for priv in every if self.allowed(who, path, priv)}
            if held:
                out[path] = {
                    priv: int(self.allowed(who, path.rstrip("/") + "/x" if path != "/vms" else "/vms/0", priv))
                    for priv in sorted(held)
                }
        return out
