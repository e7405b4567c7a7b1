"""The web page that shows a link."""
