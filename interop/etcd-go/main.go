// Command etcd-go is a candidate of go.etcd.io/etcd/client/v3/concurrency, as other services have it, for tests that share
// one election between it and incumbent.
//
//	etcd-go ENDPOINT TTL_SECONDS ELECTION VALUE
//
// It prints "campaigning", then "elected REVISION" when it leads, "lost" when its session ends, and resigns on
// SIGTERM, after which it prints "resigned".
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 5 {
		log.Fatal("usage: etcd-go ENDPOINT TTL_SECONDS ELECTION VALUE")
	}
	ttl, err := strconv.Atoi(os.Args[2])
	if err != nil {
		log.Fatalf("TTL_SECONDS: %v", err)
	}
	if err := campaign(os.Args[1], ttl, os.Args[3], os.Args[4]); err != nil {
		log.Fatal(err)
	}
}

func campaign(endpoint string, ttl int, name, value string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, DialTimeout: 5 * time.Second})
	if err != nil {
		return fmt.Errorf("connect to %s: %w", endpoint, err)
	}
	defer client.Close()
	session, err := concurrency.NewSession(client, concurrency.WithTTL(ttl))
	if err != nil {
		return fmt.Errorf("open a session: %w", err)
	}
	defer session.Close()

	election := concurrency.NewElection(session, name)
	fmt.Println("campaigning")
	if err := election.Campaign(ctx, value); err != nil {
		return fmt.Errorf("campaign: %w", err)
	}
	fmt.Println("elected", election.Rev())

	select {
	case <-session.Done():
		fmt.Println("lost")
		return nil
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := election.Resign(ending); err != nil {
		return fmt.Errorf("resign: %w", err)
	}
	fmt.Println("resigned")
	return nil
}
