"""Read debug information in a confined child: ``python -P -s -m innoscope.target.symbols.confined_reader``.

The Rust core starts it with the file open at descriptor 3 (agent/native/src/confined).
"""

from __future__ import annotations

from innoscope import _native

if __name__ == "__main__":
    _native.serve_confined()
