"""Put MathJax into the built site, so that formulas need no other host.

The files come from the package django-static-mathjax, which holds MathJax as its authors publish
it. The whole is 10 MB; a page needs the three parts below. `input/tex/extensions` looks optional
and is not: without it, one command that MathJax loads on demand, such as `\\color`, stops all
formulas of its page.
"""

import shutil
from importlib.resources import as_file, files

PARTS = ("tex-mml-chtml.js", "output/chtml/fonts/woff-v2", "input/tex/extensions")


def copy_mathjax(app, exception):
    if exception or app.builder.format != "html":
        return
    target = app.outdir / "_static" / "mathjax"
    with as_file(files("mathjax") / "static" / "mathjax" / "es5") as source:
        for part in PARTS:
            (target / part).parent.mkdir(parents=True, exist_ok=True)
            if (source / part).is_dir():
                shutil.copytree(source / part, target / part, dirs_exist_ok=True)
            else:
                shutil.copy(source / part, target / part)


def setup(app):
    app.config.mathjax_path = "mathjax/tex-mml-chtml.js"
    app.connect("build-finished", copy_mathjax)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
