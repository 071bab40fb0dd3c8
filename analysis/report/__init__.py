"""The report of a run: one HTML file that works offline, each figure also as PNG, SVG and CSV."""
