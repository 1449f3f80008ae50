"""Reading the files of servers: symbol tables, debug information, code."""

from __future__ import annotations

import threading
from typing import Final

#: Each server takes up to 30 MB for a moment. A host with many servers is there for them: one at a time.
ONE_AT_A_TIME: Final = threading.Lock()
