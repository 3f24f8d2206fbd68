# Each target prepares what it needs; see scripts/setup.sh. Variables: DEMO_ARGS,
# SURVEY_DEMO_ARGS, STORY_ARGS, TEST_ARGS, TEST_WORKERS, PART, PROVE_ARGS, MATRIX_ARGS, BENCH_ARGS,
# PIPELINE_ARGS, RELEASE_ARGS, PYTHON.

.DEFAULT_GOAL := help
.PHONY: help setup demo survey-demo story pipeline cassandra test test-all test-part test-cassandra test-matrix test-durations lint format types bench prove release wheel docs screenshots clean

# One worker more than cores: the tests wait for servers for a third of their time.
TEST_WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); [ $$n -gt 4 ] && n=4; echo $$((n + 1)))
# -P keeps the checkout's root off the import path, so that nothing can import `jobs` or `lua`.
PY := .venv/bin/python -P

help:  ## show this list
	@sed -n -E 's/^([a-z-]+):.*## (.*)/make \1\t\2/p' Makefile | expand -t 16

setup:  ## prepare .venv and the servers for all the other targets
	@bash scripts/setup.sh dev

demo:  ## run the demo: make demo DEMO_ARGS="--seconds 20"
	@bash scripts/setup.sh demo
	@.venv/bin/workstealing demo $(DEMO_ARGS)

survey-demo:  ## survey the garbage of real programs, and collect it
	@bash scripts/setup.sh demo
	@.venv/bin/workstealing survey-demo --html .cache/survey.html $(SURVEY_DEMO_ARGS)

story: setup  ## one program tells the whole story: it kills, and proves that nothing was lost
	@PYTHONPATH=examples $(PY) -m archive $(STORY_ARGS)

pipeline: setup  ## run the example on Spark: make pipeline PIPELINE_ARGS="--seconds 30"
	@PYTHONPATH=examples $(PY) -m spark_pipeline $(PIPELINE_ARGS)

cassandra: setup  ## run a Cassandra to try a queue on, until Ctrl-C
	@bash scripts/fetch_cassandra.sh
	@PYTHONPATH=tests $(PY) -m support.cassandra

test: setup  ## run the tests, but for the slow ones: make test TEST_ARGS="-k attempt"
	@exec bash scripts/test.sh quick $(TEST_WORKERS) $(TEST_ARGS)

test-all: setup  ## run all tests, on all servers: make test-all TEST_ARGS="-k attempt"
	@exec bash scripts/test.sh all $(TEST_WORKERS) $(TEST_ARGS)

test-part: setup  ## run one part of what make test leaves out: make test-part PART=3
	@exec $(PY) scripts/parts.py run "$(PART)" $(TEST_ARGS)

test-cassandra: setup  ## run the tests that want a real Cassandra, which it fetches
	@exec bash scripts/test.sh cassandra 1 $(TEST_ARGS)

test-matrix: setup  ## run the core contracts on the oldest and the newest of everything
	@exec bash scripts/test.sh matrix 1 $(MATRIX_ARGS)

test-durations: setup  ## measure all tests, from which CI's parts are cut (an hour)
	@rm -rf .cache/durations && mkdir -p .cache/durations
	@bash scripts/test.sh all $(TEST_WORKERS) -q --costs-to=.cache/durations
	@bash scripts/test.sh cassandra 1 -q --costs-to=.cache/durations
	@$(PY) scripts/parts.py durations .cache/durations

lint: setup  ## check style and formatting
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .

format: setup  ## repair style and formatting
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

types: setup  ## check types: mypy strict over the installed package
	@bash scripts/types.sh

bench: setup  ## measure, each figure beside its reference: make bench BENCH_ARGS="..."
	@.venv/bin/python benchmarks/run.py $(BENCH_ARGS)

prove: setup  ## attack it again with new seeds, and add it up in docs/proof.md: make prove PROVE_ARGS="..."
	@exec $(PY) scripts/prove.py $(PROVE_ARGS)

release: setup  ## prepare a release in dist/, try it, publish nothing: make release RELEASE_ARGS=--rehearse
	@exec $(PY) scripts/release.py $(RELEASE_ARGS)

docs: setup  ## build the site into .cache/site: search works without a server
	@bash scripts/docs.sh

screenshots: setup  ## make the pictures of docs/ anew, by a browser
	@WORKSTEALING_SCREENSHOTS=1 exec $(PY) -m pytest -q -n 0 -m "" -k "picture" \
		tests/browser/test_dashboard.py tests/browser/test_survey.py tests/browser/test_spark_page.py

wheel: setup  ## build the wheel into dist/
	@bash scripts/build_wheel.sh dist

clean:  ## remove all that make has made
	@rm -rf .venv .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
