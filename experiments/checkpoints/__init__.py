"""Checkpoints of a run in an object store: a model that transformers loads, and the optimizer's state.

A checkpoint exists once its manifest exists, which is stored last:

    <to>/<run_id>/epoch-00000012-<vm>/model/...     experiments/tasks/saving.py: model.safetensors, config.json, ...
                                      state/...     state.py: optimizer.safetensors, state.json
                                      manifest.json manifest.py: sizes and SHA-256 of the others
"""
