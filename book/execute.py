"""Run notebooks again and store their outputs: python book/execute.py book/*.ipynb

What the kernel says of itself is not stored: it would differ on every reader's machine. What the
outputs were made by is, so that a test can tell when they are out of date.
"""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from pictures import lighten
from stored import digests

for path in map(Path, sys.argv[1:]):
    print("running", path, flush=True)
    notebook = nbformat.read(path, as_version=4)
    made_by = digests(notebook)
    here = {"metadata": {"path": path.parent}}
    client = NotebookClient(
        notebook, timeout=600, record_timing=False, coalesce_streams=True, resources=here
    )
    client.execute()
    lighten(notebook)
    notebook.metadata.language_info = {"name": "python"}
    notebook.metadata.made_by = made_by
    nbformat.write(notebook, path)
