# make study   set everything up, run the study on embedded data, say where its report is
# make test    set everything up, run the tests
# make ui      the MLflow pages of all runs, on this machine
# make compare the experiments of `dvc exp run`, a row each

SHELL := /bin/bash
VENV := .venv
PYTHON ?= python3
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
MLFLOW_TRACKING_URI ?= sqlite:///$(CURDIR)/mlflow.db

.PHONY: study test ui compare

# The two experiments don't depend on each other, so each gets a core: -s, since DVC locks what both depend on, which
# comes first. 252 is how DVC ends when it is interrupted.
DATASETS := import yaml; p = yaml.safe_load(open("params.yaml")); print(*{p[x]["dataset"] for x in ("toy", "study")})
study: $(VENV)/installed
	dvc repro plan code $$(python -c '$(DATASETS)' | sed 's/[^ ]*/prepare@&/g')
	set -m; dvc --wait-for-lock repro -s train-toy lipschitz-toy report-toy & toy=$$!; \
	dvc --wait-for-lock repro -s train-study lipschitz-study certify-study attack-study report-study; study=$$?; \
	if [ $$study -eq 252 ]; then kill -INT -- -$$toy; fi; wait $$toy && exit $$study
	dvc repro -s page
	@echo "report: file://$(CURDIR)/reports/report.html"

test: $(VENV)/installed
	ruff check
	ruff format --check
	mypy
	pytest

ui: $(VENV)/installed
	mlflow ui --backend-store-uri $(MLFLOW_TRACKING_URI) --host 127.0.0.1 --port 5000

compare: $(VENV)/installed
	dvc exp show --only-changed --drop '^(data|runs|lbdn|stages|reports)/|^(State|Executor)$$'

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@
