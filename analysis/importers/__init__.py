"""Importers of logs and exports."""
