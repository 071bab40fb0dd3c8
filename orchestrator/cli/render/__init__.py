"""Render plain data as text: tables, live view, summaries. Pure, except for terminal.py."""
