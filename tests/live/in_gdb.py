"""Script for gdb: print ``{tid: [[pc, name, inlined], ...]}`` for all threads, without tail-call frames."""

# mypy: ignore-errors

import json

import gdb


def _stack(thread):
    thread.switch()
    frames = []
    frame = gdb.newest_frame()
    while frame is not None:
        if frame.type() != gdb.TAILCALL_FRAME:
            frames.append([frame.pc(), frame.name(), frame.type() == gdb.INLINE_FRAME])
        frame = frame.older()
    return frames


print(json.dumps({thread.ptid[1]: _stack(thread) for thread in gdb.selected_inferior().threads()}))
