# Firn's front door. Each target is one script or one binary; the logic, and its explanation, is there.
#
#   make demo            build, run and check an edge on this machine's disk, from set-up to a table of figures
#   make story           the whole story of a customer through firn dev: sign-up, share, crash, snapshot, cleaning, disk, bill
#   make scenarios       the whole product as customers run it, one scenario after the other; NAME=customer runs one, ARGUMENTS=--list tells all
#   make test            everything that must hold before a change is merged
#   make test-all        that, lint and every check that takes too long for each change; at least every week
#   make lint            formatting, clippy, licences and advisories, forbidden dependencies
#   make bench           our figures beside a peer's, in the same run; writes docs/benchmarks.md
#   make bounds          what Firn promises never to exceed, measured at full size; writes docs/bounds.md
#   make bench-full      the BlueSky paper's tables over again, cell by cell; writes docs/benchmarks-bluesky.md
#   make bench-blockd    virtual disks in virtual time, and beside nbdkit in real time; writes docs/benchmarks-blockd.md
#   make bench-control-plane  billing, policy and the gateway in figures; writes docs/benchmarks-control-plane.md
#   make bench-cleaner   what cleaning and snapshots cost; writes docs/benchmarks-cleaner.md
#   make bench-mounts    SMB and mounts beside Samba on ext4, our NFS and ext4; writes docs/benchmarks-mounts.md
#   make bench-sharing   the SCFS paper's evaluation over again: latency and costs of sharing between offices; writes docs/benchmarks-sharing.md
#   make bench-iris      the Iris paper's figures over again: latency, caches, hashes, challenges; ARGUMENTS names parts; writes docs/benchmarks-iris.md
#   make bench-audits    how often audits notice what they say they would; writes docs/audits-in-figures.md
#   make bench-audit-costs  what trust in the cloud costs for 1, 10 and 100 TiB, from counted requests (ten minutes); writes docs/costs-of-audits.md
#   make bench-regression  what operations cost the processor and the kernel, beside bench/regression.json; --write by ARGUMENTS
#   make bench-build     what building Firn costs, against its budget
#   make simulate        SEEDS=n FIRST_SEED=s: random histories with crashes against the model
#   make simulate-followers  SEEDS=n FIRST_SEED=s: the same of an owner and its followers
#   make simulate-members  SEEDS=n FIRST_SEED=s: the same of members that write a volume by turns
#   make simulate-locks    SEEDS=n FIRST_SEED=s: the same of their clients' locks
#   make simulate-office-locks  SEEDS=n FIRST_SEED=s: the same of locks in such a volume
#   make simulate-offices  SEEDS=n FIRST_SEED=s: the same of offices that write a volume at the same moment, without and with a cleaner beside them
#   make check-leases    every history of the lease and commit protocol of shared volumes within bounds; ARGUMENTS="--bounds large" or --mutants
#   make simulate-mutants  every planted bug must be caught
#   make simulate-anchor HISTORIES=n: callers of the anchor service through a bad network and restarts; SEED=s repeats one
#   make simulate-blockd SEEDS=n FIRST_SEED=s: virtual disks through crashes; -mutants and -exhaustive as well
#   make check-disk-kernel  a kernel, its NBD client and its NFS client: ext4 and SQLite on a disk through kill -9; what a tenant types of disks, caps, snapshots, rekeys
#   make check-offices   three offices of one shared volume under a kernel's NFS client, at 0, 30 and 100 ms to the cloud; SQLite with locks; edges that are killed, and one that is cut off; the same of a volume that they write at the same moment
#   make check-postgres  KILLS=n: PostgreSQL on a virtual disk that is killed; every acknowledged commit, and amcheck
#   make check-api       the control plane against its OpenAPI document, with requests made by Schemathesis
#   make check-policy    the control plane's policies by Open Policy Agent: tests, every line covered
#   make check-roles     who may do what in the cloud: every role's policy files against a matrix, and on a server that checks credentials
#   make check-flood     32,000 silent and slow connections against edge, control plane, gateway and disk node; clients beside them; writes docs/benchmarks-connections.md
#   make check-user-data what an instance of EC2 runs when the pool starts it, in an empty Debian, until its node serves (root)
#   make check-infra     the Terraform modules: format, validity, tests, the current AWS provider's schema, policies, tflint, checkov
#   make check-foreign   the command line tool for Windows and macOS, type-checked with all C code in it
#   make load            load on the control plane behind Envoy and OPA, by k6; a report in target/load; --smoke by ARGUMENTS
#   make load-tenants    load on the data plane: tenants with an edge each that works, counts of every request, and a model of a million of them held against it
#   make packages        Debian packages of all programs, in target/packages
#   make release         ARGUMENTS="--dry-run OUT": packages, images, functions, their section of the change log, a signed manifest; the tag (scripts/release)
#   make images          OCI images of the programs that run in containers, with their bills of materials, in target/images
#   make lambda          the cleaner and the anchor service as zips for AWS Lambda, in target/lambda; ARCHITECTURES="x86_64 aarch64"
#   make fuzz            SECONDS=n: each fuzz target for n seconds
#   make setup           LEVEL=demo|test|bench: install what that level needs

FIRN_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/firn
export FIRN_CACHE
# Outside the tree, so that a fresh clone on the same machine starts with the dependencies built.
export CARGO_TARGET_DIR ?= $(FIRN_CACHE)/target

SEEDS ?= 10000
FIRST_SEED ?= 1
SECONDS ?= 60
LEVEL ?= test
# The other processor needs a cross compiler; scripts/package-lambda says which.
ARCHITECTURES ?= $(shell uname -m)

.PHONY: demo story scenarios test test-all lint bench bench-full bench-blockd bench-control-plane bench-cleaner bench-mounts bench-sharing bench-iris bench-audits bench-audit-costs bench-build bench-regression bounds simulate simulate-followers simulate-members simulate-locks simulate-office-locks simulate-offices simulate-mutants simulate-anchor simulate-blockd simulate-blockd-mutants simulate-blockd-exhaustive check-leases check-disk-kernel check-offices check-postgres check-api check-policy check-roles check-flood check-user-data check-infra check-foreign load load-tenants packages release images lambda fuzz setup setup-test clean

demo:
	@scripts/setup demo
	@cargo build --locked --release -p firn-edge -p firn-demo
	@cargo run --locked --quiet --release -p firn-demo

# A test that says how far it is; too long for each change.
story:
	@scripts/setup test
	@cargo build --locked --release -p firn-cli -p firn-edge -p firn-dev -p firn-blockd
	@cargo test --locked --quiet --release -p firn-dev --test dev -- --include-ignored --nocapture story::

# A debug build, whose dependencies the tests have built; NAME may be several names.
scenarios:
	@scripts/setup test
	@cargo build --locked --quiet --workspace $(addprefix --bin ,firn firn-anchor firn-anchor-lambda firn-api firn-blockd firn-cleaner firn-dev firn-edge bootstrap)
	@tests/integration/run $(ARGUMENTS) $(NAME)

test:
	@scripts/setup test
	@scripts/test

test-all:
	@scripts/setup bench
	@scripts/test --all

lint:
	@scripts/lint

bench:
	@scripts/setup bench
	@scripts/bench

bounds:
	@scripts/setup bench
	@scripts/bounds

bench-full:
	@scripts/setup bench
	@scripts/bench-full $(ARGUMENTS)

bench-blockd:
	@scripts/setup bench
	@scripts/bench-blockd $(ARGUMENTS)

bench-control-plane:
	@scripts/setup bench
	@scripts/bench-control-plane $(ARGUMENTS)

bench-cleaner:
	@scripts/setup bench
	@scripts/bench-cleaner $(ARGUMENTS)

bench-mounts:
	@scripts/setup bench
	@scripts/bench-mounts $(ARGUMENTS)

bench-sharing:
	@scripts/bench-sharing $(ARGUMENTS)

bench-iris:
	@scripts/bench-iris $(ARGUMENTS)

bench-audits:
	@scripts/bench-audits detection uploads reads

bench-audit-costs:
	@scripts/bench-audits costs encoding

bench-build:
	@scripts/bench-build

bench-regression:
	@cargo build --locked --quiet --release -p firn-bench-regression
	@cargo build --locked --quiet --release -p firn-edge
	@"$${CARGO_TARGET_DIR:-target}/release/firn-bench-regression" $(ARGUMENTS)

simulate:
	@cargo run --locked --quiet --release -p firn-simulation -- --seeds $(SEEDS) --first-seed $(FIRST_SEED)

simulate-members:
	@cargo run --locked --quiet --release -p firn-simulation -- --members --seeds $(SEEDS) --first-seed $(FIRST_SEED)

simulate-locks:
	@cargo run --locked --quiet --release -p firn-simulation -- --locks --seeds $(SEEDS) --first-seed $(FIRST_SEED)

simulate-offices:
	@SEEDS=$(SEEDS) FIRST_SEED=$(FIRST_SEED) cargo test --locked --quiet --release -p firn-volume --test engine -- --nocapture by_inode::histories::offices

simulate-office-locks:
	@SEEDS=$(SEEDS) FIRST_SEED=$(FIRST_SEED) cargo test --locked --quiet --release -p firn-volume --test engine -- --nocapture by_inode::locks::locks_exclude

simulate-followers:
	@cargo run --locked --quiet --release -p firn-simulation -- --followers --seeds $(SEEDS) --first-seed $(FIRST_SEED)

simulate-mutants:
	@cargo run --locked --quiet --release -p firn-simulation --features mutants -- --mutants

simulate-anchor:
	@FIRN_ANCHOR_HISTORIES=$(or $(HISTORIES),10000) FIRN_SEED=$(SEED) cargo test --locked --quiet --workspace --test histories -- --nocapture whatever_the_network_does

simulate-blockd:
	@cargo run --locked --quiet --release -p firn-blockd-simulation -- --seeds $(SEEDS) --first-seed $(FIRST_SEED)

simulate-blockd-mutants:
	@cargo run --locked --quiet --release -p firn-blockd-simulation --features mutants -- --mutants

simulate-blockd-exhaustive:
	@cargo run --locked --quiet --release -p firn-blockd-simulation -- --exhaustive 5

check-leases:
	@cargo run --locked --quiet --release -p firn-lease-model -- $(ARGUMENTS)

check-disk-kernel:
	@scripts/setup test
	@cargo build --locked --quiet --release -p firn-blockd -p firn-cli -p firn-dev -p firn-edge
	@tests/lab/run-kernel-tests disk $(CARGO_TARGET_DIR)/release/firn-blockd
	@tests/lab/run-kernel-tests tenant $(CARGO_TARGET_DIR)/release

check-offices:
	@scripts/setup test
	@cargo build --locked --quiet --release -p firn-edge
	@tests/lab/run-kernel-tests offices $(CARGO_TARGET_DIR)/release/firn-edge
	@tests/lab/run-kernel-tests offices $(CARGO_TARGET_DIR)/release/firn-edge --set LEASES=inode

check-postgres:
	@scripts/setup bench
	@cargo build --locked --quiet --release -p firn-blockd
	@tests/lab/postgres-on-a-disk --kills $(or $(KILLS),20) $(CARGO_TARGET_DIR)/release/firn-blockd

check-api:
	@cargo build --locked -p firn-api
	@services/api/tests/try-openapi $(CARGO_TARGET_DIR)/debug/firn-api

check-policy:
	@tests/lab/cloud/install opa
	@services/api/policy/check

check-roles:
	@tests/policies/check
	@tests/lab/cloud/install versitygw
	@tests/lab/cloud/with versityiam -- tests/policies/enforced

check-flood:
	@scripts/check-connections $(ARGUMENTS)

check-user-data:
	@scripts/setup test
	@cargo build --locked --quiet --release -p firn-api -p firn-blockd
	@tests/lab/cloud/with localstack dynamodb -- tests/lab/user-data-in-chroot $(CARGO_TARGET_DIR)/release/firn-api $(CARGO_TARGET_DIR)/release/firn-blockd

check-infra:
	@tests/lab/terraform/install tofu aws schema tflint checkov azurerm
	@tests/terraform/check

check-foreign:
	@scripts/check-foreign

load:
	@cargo build --locked --release -p firn-api
	@load/run $(ARGUMENTS)

load-tenants:
	@scripts/setup test
	@cargo build --locked --release -p firn-api -p firn-cli -p firn-edge -p firn-blockd
	@load/tenants --page $(ARGUMENTS) "$${CARGO_TARGET_DIR:-target}/release"

packages:
	@cargo build --locked --release -p firn-edge -p firn-cli -p firn-blockd -p firn-cleaner-standalone -p firn-anchor-service -p firn-api
	@packaging/build target/packages

release:
	@scripts/release $(ARGUMENTS)

images:
	@cargo build --locked --release -p firn-edge -p firn-blockd -p firn-cleaner-standalone -p firn-anchor-service -p firn-api
	@packaging/images/build target/images

lambda:
	@mkdir -p target/lambda
	@for machine in $(ARCHITECTURES); do \
	  scripts/package-lambda --target $$machine-unknown-linux-gnu target/lambda/firn-cleaner-$$machine.zip || exit 1; \
	  scripts/package-lambda --anchor --target $$machine-unknown-linux-gnu target/lambda/firn-anchor-$$machine.zip || exit 1; \
	done

fuzz:
	@scripts/fuzz $(SECONDS)

setup:
	@scripts/setup $(LEVEL)

setup-test:
	@scripts/setup-test

# Only what this tree built; the caches under $(FIRN_CACHE) serve other clones too.
clean:
	@rm -rf target fuzz/target
