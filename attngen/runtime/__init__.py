"""Runs generated source: `loader` (file cache, import, the interpreter), `aot` (binaries without a GPU).

`cache` (files by their content), `aot_worker` (the process that compiles), `listing` (reads what compilers print).
`tpu` is a room of its own: schedules for TPUs that are not here.
"""
