"""Histories of spot capacity, spot prices and interruption bands: records, readers, and files of imports."""
