"""Binder and Colab buttons on every chapter, once the repository's address is in _config.yml.

Without an address there is none: a button that leads nowhere is worse than no button. Colab opens
what is on GitHub only, and it has no zerolab, so its button says what to type first.
"""

BINDER, COLAB = "https://mybinder.org", "https://colab.research.google.com"


def configure(app, config):
    address = config.html_theme_options.get("repository_url", "")
    buttons = {"notebook_interface": "jupyterlab"}
    if address:
        buttons["binderhub_url"] = BINDER
    if "github.com/" in address:
        buttons["colab_url"] = COLAB
    config.html_theme_options["launch_buttons"] = buttons


def say_what_colab_needs(app, pagename, templatename, context, doctree):
    address = app.config.html_theme_options.get("repository_url", "")
    for group in context.get("header_buttons", ()):
        for button in group.get("buttons", ()):
            if button["text"] == "Colab":
                button["tooltip"] = f"Open in Colab; first run: %pip install git+{address}"


def setup(app):
    app.connect("config-inited", configure)
    app.connect("html-page-context", say_what_colab_needs, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
