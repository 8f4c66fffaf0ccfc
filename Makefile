# The commands people type. `make help` lists them.

SHELL := /bin/sh
CARGO ?= cargo
RUST := 1.95
# What a Pod needs to run; `make control-plane` builds the rest too.
CONTROL_PLANE := etcd kube-apiserver kube-controller-manager kube-scheduler kubectl metrics-server
FURTHER := helm cluster-api-core
# Kubernetes' own end-to-end suite.
SUITE := e2e.test ginkgo agnhost
# Cargo's own variable, so that `make` finds what cargo built.
BUILT := $(or $(CARGO_TARGET_DIR),target)
# Most tests wait, for a guest to boot or a Pod to go: four for each core.
TEST_THREADS ?= $(shell echo $$((4 * $$(getconf _NPROCESSORS_ONLN))))
# The agent that `make test-older` runs beside this one. There is no release yet: it is the newest of main on the morning of 18 November 2026.
OLDER ?= f20a5501f30cc588d8f36c0e125c441f5d53cb23
say = printf '\033[1m==> %s\033[0m\n'

# On a Mac with tart the demo uses both; everywhere else a simulated Mac. There IMAGE names the image to run.
real_tart = if [ "$$(uname)" = Darwin ] && tart=$$(command -v tart); then export TART_KUBELET_TEST_TART="$$tart" IMAGE="$(IMAGE)"; fi;

.DEFAULT_GOAL := help
.PHONY: help demo fleet-demo test test-1.35 test-older test-provider test-chart test-image bench fuzz conformance control-plane assets build lint fmt docs deny rust crds soak release

help: ## List the commands
	@awk -F ':.*## ' '/^[a-z0-9.-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: assets build ## Run a Pod as a VM on a local control plane; CHECK=1 ends by itself
	@$(say) "demo"
	@$(real_tart) $(BUILT)/debug/demo $(if $(CHECK),--check)

fleet-demo: assets build ## Run a fleet of five simulated Macs through all that happens to one; KEEP=1 keeps it, PICTURES=1 draws the dashboards (10 minutes)
	@tests/control-plane/build $(CONTROL_PLANE) $(FURTHER) >/dev/null
	@$(say) "fleet demo"
	@$(BUILT)/debug/fleet-demo $(if $(KEEP),--keep) $(if $(PICTURES),--pictures=docs/pictures)

test: assets build ## Run the tests, but for those of the targets below; T=orphans:: for those whose path matches
	@$(say) "tests: agent, simulator, then end to end on a real control plane"
	CARGO="$(CARGO)" RUST_TEST_THREADS=$(TEST_THREADS) tests/run $(T)

test-1.35: assets build ## Run the tests of the kubelet API with an API server of Kubernetes 1.35 (4 minutes to build, once per machine)
	@$(say) "tests of the kubelet API with Kubernetes 1.35"
	TART_KUBELET_TEST_API_SERVER="$$(KUBERNETES=1.35 tests/control-plane/build kube-apiserver)/kube-apiserver" \
		RUST_TEST_THREADS=$(TEST_THREADS) $(CARGO) test --locked -p tart-kubelet-tests --test e2e -- $(or $(T),api::)

test-older: assets build ## Run agent and shim of different releases together; OLDER=commit for another one (5 minutes to build, once per commit)
	@$(say) "the agent of $(OLDER)"
	@commit=$$(git rev-parse --verify --quiet "$(OLDER)^{commit}") || { echo "$(OLDER) is no commit of this repository; a shallow clone lacks it"; exit 1; }; \
	tree="$(abspath $(BUILT))/older/$$commit" && mkdir -p "$$tree" && git archive "$$commit" | tar -x -C "$$tree" && \
	CARGO_TARGET_DIR="$$tree/target" $(CARGO) build --locked --bin tart-kubelet --manifest-path "$$tree/Cargo.toml" && \
	TART_KUBELET_OLDER_BINARY="$$tree/target/debug/tart-kubelet" RUST_TEST_THREADS=2 \
		$(CARGO) test --locked -p tart-kubelet-tests --test e2e -- --ignored $(or $(T),older_release::)

test-provider: assets build ## Run the tests of the provider on real Cluster API; T=name for some
	@tests/control-plane/build $(CONTROL_PLANE) $(FURTHER) >/dev/null
	RUST_TEST_THREADS=2 $(CARGO) test --locked -p tart-kubelet-tests --test provider -- $(T)

test-chart: assets build ## Run the tests of the Helm chart with real helm and Cluster API; T=name for some, UPDATE_GOLDEN=1 writes what it renders
	@tests/control-plane/build $(CONTROL_PLANE) $(FURTHER) >/dev/null
	RUST_TEST_THREADS=4 $(CARGO) test --locked -p tart-kubelet-tests --test chart -- $(T)

test-image: rust ## Build the provider's image with buildah and run the provider in it; PROVIDER=FILE for one that is static already
	@PROVIDER='$(PROVIDER)' packaging/image/test

bench: assets build ## Measure what is promised, into bench.json; BENCH=name for one figure, or for all whose names begin so
	@tests/control-plane/build $(CONTROL_PLANE) cluster-api-core >/dev/null
	@$(say) "building the release binaries (some minutes when they are not there yet)"
	$(CARGO) build --locked --release -p tart-kubelet-main -p tart-provider-main -p tart-sim
	@$(say) "bench"
	@TART_KUBELET_BINARY=$(BUILT)/release/tart-kubelet TART_PROVIDER_BINARY=$(BUILT)/release/tart-provider TART_SIM_BINARY=$(BUILT)/release/tart $(BUILT)/debug/bench $(BENCH)

fuzz: rust ## Fuzz what clients send to the kubelet API, with inputs that are new each time; SECONDS=60 for each target
	FUZZ_SECONDS=$(or $(SECONDS),60) $(CARGO) test --locked -p tart-kubelet --lib -- fuzz_ --nocapture

soak: assets build ## Run random worlds and watch what must always hold; SEED=1 STEPS=10000 WORLDS=5; BLIND=1 kills without noting it, and has to end with a violation
	@$(say) "soak"
	@$(BUILT)/debug/soak $(if $(SEED),--seed $(SEED)) $(if $(STEPS),--steps $(STEPS)) $(if $(WORLDS),--worlds $(WORLDS)) $(if $(BLIND),--blind)

conformance: assets build ## Run Kubernetes' own suite for kubelets; FOCUS=regex for some specs, KNOWN=1 for those that do not pass, too
	@$(say) "Kubernetes' end-to-end suite: $(SUITE)"
	@tests/control-plane/build $(SUITE)
	@tests/debian/unpack busybox-static bin/busybox
	@$(say) "conformance"
	@FOCUS='$(subst ','\'',$(FOCUS))' KNOWN=$(KNOWN) PROCS=$(PROCS) $(BUILT)/debug/conformance

control-plane: ## Build the whole control plane into the user's cache (8 minutes, once per machine)
	@tests/control-plane/build $(CONTROL_PLANE) >/dev/null
	@tests/control-plane/build $(CONTROL_PLANE) $(FURTHER)

release: rust ## Build into dist/ what a release has and this machine can build, and say what was left out; AGENT=FILE for an agent built elsewhere
	@AGENT='$(AGENT)' packaging/release/build

lint: rust ## Check formatting, lints and the links of the code's documentation
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --document-private-items --locked

fmt: rust ## Format the code
	$(CARGO) fmt --all

docs: rust ## Write the documentation that is made from code
	UPDATE_DOCS=1 $(CARGO) test --quiet --locked -p tart-kubelet the_documentation_is_the_table
	UPDATE_DOCS=1 $(CARGO) test --quiet --locked -p tart-sim --lib the_readme_lists_every_fault
	UPDATE_DOCS=1 $(CARGO) test --quiet --locked -p mac-sim --lib the_readme_lists_every_fault

crds: rust ## Write the provider's CustomResourceDefinitions into the chart
	UPDATE_CRDS=1 $(CARGO) test --quiet --locked -p tart-provider --lib the_chart_has_these_definitions

deny: rust ## Check licences, duplicates and sources of all dependencies; ADVISORIES=1 for known holes too (needs the network)
	@command -v cargo-deny >/dev/null || { $(say) "installing cargo-deny"; $(CARGO) install --locked --quiet cargo-deny; }
	$(CARGO) deny --log-level error check bans licenses sources $(if $(ADVISORIES),advisories)

# What `demo`, `test` and `bench` stand on.

assets:
	@$(say) "control plane: $(CONTROL_PLANE)"
	@tests/control-plane/build $(CONTROL_PLANE)
	@$(say) "sshd of the simulated Mac"
	@tests/mac-sim/openssh || echo "the tests on a simulated Mac are skipped"
	@$(say) "Prometheus"
	@[ "$$(uname)" != Linux ] || tests/debian/unpack prometheus usr/bin/prometheus || echo "the tests with Prometheus are skipped"
	@$(say) "a clock that tests move"
	@[ "$$(uname)" != Linux ] || tests/debian/unpack libfaketime 'usr/lib/*/faketime/libfaketimeMT.so.1'

build: rust
	@$(say) "building the workspace"
	$(CARGO) build --workspace --bins --locked

rust:
	@command -v $(CARGO) >/dev/null || { echo "cargo is missing: install Rust $(RUST) or newer, for instance with rustup"; exit 1; }
