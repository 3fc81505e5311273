// Command raft-go is a peer of github.com/hashicorp/raft, as services embed it, to be measured beside incumbent's own.
//
//	raft-go NAME NAME=HOST:PORT,NAME=HOST:PORT,…
//
// Its log is in memory and its timeouts are the library's defaults. It prints "leader" whenever it leads from then on, and "follower"
// when it leads no longer.
package main

import (
	"fmt"
	"io"
	"log"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/raft"
)

type nothing struct{}

func (nothing) Apply(*raft.Log) any                  { return nil }
func (nothing) Snapshot() (raft.FSMSnapshot, error)  { return nothing{}, nil }
func (nothing) Restore(snapshot io.ReadCloser) error { return snapshot.Close() }
func (nothing) Persist(sink raft.SnapshotSink) error { return sink.Close() }
func (nothing) Release()                             {}

func main() {
	log.SetFlags(0)
	if len(os.Args) != 3 {
		log.Fatal("usage: raft-go NAME NAME=HOST:PORT,…")
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		log.Fatal(err)
	}
}

func run(name, list string) error {
	var cluster raft.Configuration
	var own string
	for _, member := range strings.Split(list, ",") {
		id, address, found := strings.Cut(member, "=")
		if !found {
			return fmt.Errorf("%q is no NAME=HOST:PORT", member)
		}
		cluster.Servers = append(cluster.Servers, raft.Server{ID: raft.ServerID(id), Address: raft.ServerAddress(address)})
		if id == name {
			own = address
		}
	}
	config := raft.DefaultConfig()
	config.LocalID = raft.ServerID(name)
	config.LogOutput = os.Stderr
	config.LogLevel = "ERROR"
	transport, err := raft.NewTCPTransport(own, nil, 3, time.Second, io.Discard)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", own, err)
	}
	store := raft.NewInmemStore()
	snapshots := raft.NewDiscardSnapshotStore()
	if err := raft.BootstrapCluster(config, store, store, snapshots, transport, cluster); err != nil {
		return fmt.Errorf("bootstrap: %w", err)
	}
	peer, err := raft.NewRaft(config, nothing{}, store, store, snapshots, transport)
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	for leads := range peer.LeaderCh() {
		if leads {
			fmt.Println("leader")
		} else {
			fmt.Println("follower")
		}
	}
	return nil
}
