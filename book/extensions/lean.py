"""Leave out of the built site what no browser asks for: 4 MB of the theme.

Source maps are for the theme's authors. Its icons are there as woff2, which every browser takes,
and once more as ttf.
"""

from pathlib import Path


def remove(app, exception):
    if exception or app.builder.format != "html":
        return
    static = Path(app.outdir) / "_static"
    for path in (*static.rglob("*.map"), *static.rglob("*.ttf")):
        path.unlink()


def setup(app):
    app.connect("build-finished", remove)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
