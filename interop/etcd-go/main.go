// Command etcd-go is a candidate of go.etcd.io/etcd/client/v3/concurrency, as other services have it, for tests that share
// one election between it and incumbent.
//
//	etcd-go [-count=N] ENDPOINT TTL_SECONDS ELECTION VALUE
//
// It prints "campaigning", then "elected REVISION" when it leads, "lost" when its session ends, and resigns on
// SIGTERM, after which it prints "resigned". With a count it stands for ELECTION-0, ELECTION-1 and so on in one session, and prints
// "all elected" once it leads them all.
package main

import (
	"context"
	"flag"
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

var count = flag.Int("count", 0, "how many elections")

func main() {
	log.SetFlags(0)
	flag.Parse()
	args := flag.Args()
	if len(args) != 4 {
		log.Fatal("usage: etcd-go [-count=N] ENDPOINT TTL_SECONDS ELECTION VALUE")
	}
	ttl, err := strconv.Atoi(args[1])
	if err != nil {
		log.Fatalf("TTL_SECONDS: %v", err)
	}
	if err := campaign(args[0], ttl, args[2], args[3]); err != nil {
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

	fmt.Println("campaigning")
	if *count > 0 {
		return campaigns(ctx, session, name, value)
	}
	election := concurrency.NewElection(session, name)
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

// campaigns wins many elections, one after the other, and keeps them until it is told to end.
func campaigns(ctx context.Context, session *concurrency.Session, name, value string) error {
	for number := range *count {
		election := concurrency.NewElection(session, fmt.Sprintf("%s-%d", name, number))
		if err := election.Campaign(ctx, value); err != nil {
			return fmt.Errorf("campaign: %w", err)
		}
	}
	fmt.Println("all elected")
	<-ctx.Done()
	return nil
}
