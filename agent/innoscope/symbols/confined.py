"""``python -P -s -m innoscope.symbols.confined``: a child that reads debug information and nothing else.

The Rust core starts it with the file open at descriptor 3 (agent/native/src/confined).
"""

from __future__ import annotations

from innoscope import _native

if __name__ == "__main__":
    _native.serve_confined()
