"""Leave the theme's source maps out of the built site: 3 MB that only the theme's authors read."""

from pathlib import Path


def remove(app, exception):
    if exception or app.builder.format != "html":
        return
    for path in (Path(app.outdir) / "_static").rglob("*.map"):
        path.unlink()


def setup(app):
    app.connect("build-finished", remove)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
