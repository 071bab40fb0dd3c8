"""The report of a run: one HTML file without external resources, and each figure as PNG, SVG and CSV."""
