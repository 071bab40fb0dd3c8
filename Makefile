# Two commands do all set-up on a fresh machine: `make demo` and `make test`.
PYTHON ?= $(shell for p in python3.11 python3.12; do $$p -c 'import venv' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
STAMP := .venv/.installed
CLOUD_STAMP := .venv/.installed-fake-ec2
# Tests that start processes run in one lane or two, because they watch the clock. They wait most of that time, so lint
# and the fast tests use the idle cores meanwhile, at a priority that takes nothing from them: in a session of their
# own, since the kernel first shares the CPU between sessions (autogroups) and only within one by priority.
FAST := $(BIN)/python -m pytest -q -n 2 --dist loadfile -m
IDLE := $(if $(shell command -v setsid),setsid sh -c '{ echo 10 > /proc/self/autogroup; } 2>/dev/null; exec "$$@"' sh) \
	$(shell command -v chrt >/dev/null && echo 'chrt -i 0' || echo 'nice -n 19')
# Of the tests that start processes, those that watch no whole machine run beside the others, with a /tmp of their own.
BESIDE := tests/experiments tests/cloud/storage tests/cloud/sky tests/orchestrator/tracking tests/orchestrator/pipeline
PROCESSES := $(BIN)/python -m pytest -q --durations=15 -m '(processes or e2e) and not soak'
# What the tests may use: the study's logs (never in this repository).
export ORCH_SHARED ?= $(abspath ../shared)

.PHONY: help demo install test test-no-processes test-fast test-cloud soak-cloud lint format soak soak-robustness clean

help: ## what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "orch needs Python 3.11 or 3.12 with venv: none found in PATH" >&2; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable '.[local,dev]'
	@touch $@

install: $(STAMP) ## the virtual environment .venv with everything in it

demo: $(STAMP) ## install, then the transatlantic run on the emulated cloud (some 4 minutes)
	$(BIN)/orch launch geo-b2.yaml --yes

test: $(STAMP) ## lint, and every test that runs on one machine
	@mkdir -p build
	@$(BIN)/ruff check --quiet . && $(BIN)/ruff format --check --quiet . # a second: refused now, not in 20 minutes
	@$(IDLE) $(MAKE) --no-print-directory lint test-no-processes > build/test-no-processes.log 2>&1 & \
	idle=$$!; beside=; \
	trap 'kill -- -$$idle 2>/dev/null || kill $$idle; [ -z "$$beside" ] || kill $$beside; wait; exit 130' INT TERM HUP; \
	if tests/apart.sh --check; then \
		tests/apart.sh $(PROCESSES) $(BESIDE) > build/test-beside.log 2>&1 & beside=$$!; \
		$(PROCESSES) $(BESIDE:%=--ignore=%); processes=$$?; \
		wait $$beside || processes=$$?; cat build/test-beside.log; \
	else $(PROCESSES); processes=$$?; fi; \
	echo "lint and the tests that start no processes (build/test-no-processes.log):"; \
	wait $$idle; others=$$?; cat build/test-no-processes.log; exit $$((processes ? processes : others))

test-no-processes: $(STAMP) # part of `make test`; a test may take long at idle priority
	$(FAST) 'not processes and not e2e' --timeout 900

test-fast: $(STAMP) ## no processes: under a minute
	$(FAST) 'not processes and not e2e and not slow'

$(CLOUD_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --editable '.[local,dev,fake-ec2]'
	@touch $@

test-cloud: $(CLOUD_STAMP) ## whole runs through the unmodified SkyPilot on a fake EC2 of this machine (docs/fake-ec2.md)
	tests/fake_ec2/run.sh -q -m 'not soak_cloud' tests/cloud_e2e

soak-cloud: $(CLOUD_STAMP) ## minutes more of the same: full disks, overwritten databases
	tests/fake_ec2/run.sh -q -m soak_cloud tests/cloud_e2e

lint: $(STAMP) ## ruff, pyright, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright

format: $(STAMP) ## let ruff rewrite the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

soak: $(STAMP) ## hours: the same tests again and again, and the benchmarks
	for i in 1 2 3 4 5 6 7 8 9 10; do $(BIN)/python -m pytest -q -m 'processes or e2e' || exit 1; done
	ORCH_SEEDS=50000 $(BIN)/python -m pytest -q tests/orchestrator/simulation/test_simulation.py
	$(BIN)/python -m benchmarks.hostile_vm --seconds 3600
	$(BIN)/python benchmarks/one_peer.py
	$(MAKE) soak-robustness

soak-robustness: $(STAMP) ## hours: 8 peers, six disturbances, 20 seeds; what build/robustness.jsonl has is not run again
	mkdir -p build
	$(BIN)/python -m benchmarks.robustness --seeds 20 -o build/robustness.jsonl --keep build/robustness

clean: ## remove the environment and caches
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
