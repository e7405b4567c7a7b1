"""What every page of results has around its content: no file beside it, light and dark colours, any width."""

from html import escape


def page(title: str, style: str, body: str) -> str:
    """Return a whole HTML page; `title` is text, `style` is CSS and `body` is HTML."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>
{style}
</style>
</head>
<body>
{body}
</body>
</html>
"""
