"""Charts as HTML with inline SVG: no script, no font, no file beside the page.

Text stays HTML, so it keeps its size on a phone and Chinese shows in the reader's own font; only
marks are SVG, drawn in percent of the plotting area. Colours are CSS variables of the page, which
has a light and a dark set.
"""
