#!/bin/sh
# Ten replicas, one ledger, a blow to each leader in turn; see README.md. Usage: run.sh [--on URL] [--unfenced]
# BILLING_PROGRAMS names the folder of the two programs if they are built already.
set -eu
cd "$(dirname "$0")"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
if [ -n "${BILLING_PROGRAMS:-}" ]; then
    "$BILLING_PROGRAMS/billing-driver" "$folder" "$@"
else
    cargo build --package billing --bins
    cargo run --quiet --package billing --bin billing-driver -- "$folder" "$@"
fi
