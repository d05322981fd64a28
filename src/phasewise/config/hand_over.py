"""Which pools can hand KV over to each other. Pure.

Only what the file says is compared; what running engines say of themselves is the check package's.
"""

from __future__ import annotations

NIXL = "NixlConnector"
