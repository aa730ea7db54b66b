"""The API's certificate is always verified: by a CA, or by its pinned SHA-256 fingerprint, never not at all."""

from __future__ import annotations

import re
import ssl
from typing import TYPE_CHECKING, Any

from recover.edge.proxmox.errors import causes, clean

if TYPE_CHECKING:
    from requests.adapters import BaseAdapter

_GOT = re.compile(r'got "([0-9a-f]+)"')
_RENEW = "renew it on the node (`pvecm updatecerts --force`, then restart pveproxy), or correct the clock here"
_TRUST = (
    "set `ca_file` to a copy of the cluster's /etc/pve/pve-root-ca.pem, or `fingerprint` to the SHA-256 fingerprint "
    "that the node shows under System > Certificates"
)
# OpenSSL's X509_V_ERR_* numbers
_BY_CODE = {
    9: ("the certificate is not valid yet", "correct the clock here or on the node"),
    10: ("the certificate has expired", _RENEW),
    18: ("the certificate is self-signed and not trusted", _TRUST),
    19: ("the certificate's chain ends in a CA that is not trusted", _TRUST),
    20: ("the certificate's issuer is not trusted", _TRUST),
    21: ("the certificate's issuer is not trusted", _TRUST),
    62: ("the certificate is for another name", "use a URL with a name that it carries, or pin its `fingerprint`"),
    64: ("the certificate is for another address", "use a URL with a name that it carries, or pin its `fingerprint`"),
}


def normal_fingerprint(text: str) -> str:
    """64 lower-case hex digits; ValueError for anything that is not a SHA-256 fingerprint."""
    digits = text.strip().lower().removeprefix("sha256:").replace(":", "").replace(" ", "")
    if not re.fullmatch(r"[0-9a-f]{64}", digits):
        raise ValueError("fingerprint: expected the 32 bytes of a SHA-256 fingerprint as hex, like AB:CD:…")
    return digits


def explain(error: BaseException) -> str | None:
    """What is wrong with the certificate and the fix; None if the error is not about the certificate."""
    for one in causes(error):
        if isinstance(one, ssl.SSLCertVerificationError):
            says, fix = _BY_CODE.get(one.verify_code, (f"the certificate was refused: {one.verify_message}", _TRUST))
            return f"{says}; {fix}"
        if "Fingerprints did not match" in str(one):
            got = _GOT.search(str(one))
            shown = ":".join(re.findall("..", got[1].upper())) if got else "another one"
            return (
                f"the certificate's fingerprint is {shown}, not the configured one; if the certificate was renewed, "
                "compare with System > Certificates on the node and change `fingerprint`"
            )
        if "suitable TLS CA certificate bundle" in str(one):
            return f"`ca_file` cannot be read: {clean(one, 200)}"
    return None


def _pinned(fingerprint: str) -> BaseAdapter:
    from requests.adapters import HTTPAdapter

    class Pinned(HTTPAdapter):
        """Trusts exactly one certificate. Also through an HTTP proxy, whose pools requests sets up elsewhere."""

        def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
            super().init_poolmanager(*args, assert_fingerprint=fingerprint, **kwargs)

        def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:
            return super().proxy_manager_for(proxy, assert_fingerprint=fingerprint, **kwargs)

        def send(self, request: Any, *args: Any, **kwargs: Any) -> Any:
            # The chain is not asked here, since the pin is stricter: urllib3 compares it right after the handshake.
            kwargs["verify"] = False
            return super().send(request, *args, **kwargs)

    return Pinned()


def _by_ca(ca_file: str | None) -> BaseAdapter:
    from requests.adapters import HTTPAdapter
    from urllib3.util.ssl_ import create_urllib3_context

    context = create_urllib3_context()
    # Python 3.13 turns on RFC 5280 strictness, which refuses the root CAs that older PVE installations made
    # (no authority key identifier). Chain, name and dates are still checked.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if ca_file is None:
        context.load_default_certs()  # the system's own store, besides the one that requests brings

    class ByCa(HTTPAdapter):
        def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
            super().init_poolmanager(*args, ssl_context=context, **kwargs)

    return ByCa()


def adapter(ca_file: str | None, fingerprint: str | None) -> BaseAdapter:
    return _pinned(fingerprint) if fingerprint else _by_ca(ca_file)
