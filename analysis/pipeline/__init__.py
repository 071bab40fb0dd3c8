"""Where the time of an input pipeline goes: records of a trace, statistics over them, advice, Chrome's trace format.

Pure: functions over frozen records, without clocks, processes or torch. experiments/pipeline/trace.py records traces.
"""
