# Two commands on a fresh Debian 12 as root: `make demo` and `make test`. Both set up all they need.
SHELL := /bin/bash
PY := .venv/bin/python

.PHONY: demo test check bench clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    a stuck 8-GPU guest in the lab, recovered before your eyes"
	@echo "make test    the whole test suite"
	@echo "make check   lint, types, import contracts"
	@echo "make bench   measures, as ratios within one run"

demo:
	@tools/setup lab
	@$(PY) -m tests.lab.demo

# One more than the two cores that it is made for: the lab's tests wait most of their time.
test:
	@tools/setup lab
	@$(PY) -m pytest -n $${TEST_JOBS:-3} --dist loadgroup

check:
	@tools/setup check
	.venv/bin/ruff check recover tests
	.venv/bin/ruff format --check recover tests
	.venv/bin/mypy
	.venv/bin/lint-imports

bench:
	@tools/setup bench
	@$(PY) -m tests.bench

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .hypothesis
