"""Reports for people: HTML with plots, Markdown."""
