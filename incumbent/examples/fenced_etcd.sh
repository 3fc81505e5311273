#!/bin/sh
# A job that is no Rust program and keeps its data in etcd: each write is a transaction that is refused under any but the newest term.
#   incumbent run fenced-etcd -- incumbent/examples/fenced_etcd.sh
# ETCDCTL_ENDPOINTS and its like tell etcdctl where the data is.
set -eu
fence=ledger/fence
mine="v1 $INCUMBENT_TOKEN $INCUMBENT_AUTHORITY"

# TRANSACTION: true if its comparison held.
holds() { etcdctl txn | grep -qx SUCCESS; }

# From here on no earlier leader writes.
until [ "$(etcdctl get "$fence" --print-value-only)" = "$mine" ]; do
    stored=$(etcdctl get "$fence" --write-out=fields)
    revision=$(printf '%s\n' "$stored" | sed -n 's/^"ModRevision" : //p')
    token=$(printf '%s\n' "$stored" | sed -n 's/^"Value" : "v1 \([0-9]*\) .*/\1/p')
    authority=$(printf '%s\n' "$stored" | sed -n 's/^"Value" : "v1 [0-9]* \(.*\)"$/\1/p')
    if [ -n "$revision" ]; then
        [ "$authority" = "$INCUMBENT_AUTHORITY" ] || { echo "refused: the fence knows authority $authority" >&2; exit 1; }
        [ "$token" -lt "$INCUMBENT_TOKEN" ] || { echo "refused: token $token leads" >&2; exit 1; }
    fi
    printf 'mod("%s") = "%s"\n\nput %s "%s"\n\n\n' "$fence" "${revision:-0}" "$fence" "$mine" | holds || true
done

count=$(etcdctl get ledger/count --print-value-only)
while sleep 0.2; do
    count=$((${count:-0} + 1))
    printf 'val("%s") = "%s"\n\nput ledger/count %s\n\n\n' "$fence" "$mine" "$count" | holds ||
        { echo "refused: another leads" >&2; exit 1; }
    echo "token $INCUMBENT_TOKEN: counted to $count"
done
