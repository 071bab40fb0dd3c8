"""Importers of logs and exports that other programs wrote."""
