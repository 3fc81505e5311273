// Command client-go is a candidate of k8s.io/client-go/tools/leaderelection, as Go services have it, for tests that share one
// Lease between it and incumbent.
//
//	client-go [-release=false] [-count=N] KUBECONFIG NAMESPACE LEASE IDENTITY LEASE_SECONDS
//
// It prints "campaigning", "leader IDENTITY" whenever it sees another, "elected" when it leads, and "lost" when it no longer does.
// On SIGTERM it releases the Lease, unless it was told not to (client-go's default), and ends with "released". With a count it stands
// for LEASE-0, LEASE-1 and so on in one process, without a limit on its requests, and prints "all elected" once it leads them all.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

var (
	release = flag.Bool("release", true, "release the Lease at the end")
	count   = flag.Int("count", 0, "how many Leases")
)

func main() {
	log.SetFlags(0)
	flag.Parse()
	args := flag.Args()
	if len(args) != 5 {
		log.Fatal("usage: client-go [-release=false] [-count=N] KUBECONFIG NAMESPACE LEASE IDENTITY LEASE_SECONDS")
	}
	seconds, err := strconv.Atoi(args[4])
	if err != nil {
		log.Fatalf("LEASE_SECONDS: %v", err)
	}
	if err := campaigns(args[0], args[1], args[2], args[3], seconds); err != nil {
		log.Fatal(err)
	}
}

func campaigns(kubeconfig, namespace, lease, identity string, seconds int) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("read %s: %w", kubeconfig, err)
	}
	if *count > 0 {
		config.QPS = -1
	}
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	fmt.Println("campaigning")
	if *count == 0 {
		campaign(ctx, clients, namespace, lease, identity, seconds, func() {})
	} else {
		var ended, elected sync.WaitGroup
		elected.Add(*count)
		for number := range *count {
			ended.Add(1)
			go func() {
				defer ended.Done()
				name := fmt.Sprintf("%s-%d", lease, number)
				campaign(ctx, clients, namespace, name, identity, seconds, sync.OnceFunc(elected.Done))
			}()
		}
		elected.Wait()
		fmt.Println("all elected")
		ended.Wait()
	}
	if ctx.Err() != nil {
		fmt.Println("released")
	}
	return nil
}

func campaign(ctx context.Context, clients *kubernetes.Clientset, namespace, lease, identity string, seconds int, elected func()) {
	lock := &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Name: lease, Namespace: namespace},
		Client:     clients.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
	}
	// The defaults are 15, 10 and 2 s.
	duration := time.Duration(seconds) * time.Second
	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
		Lock:            lock,
		LeaseDuration:   duration,
		RenewDeadline:   duration * 2 / 3,
		RetryPeriod:     duration * 2 / 15,
		ReleaseOnCancel: *release,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) {
				fmt.Println("elected")
				elected()
			},
			OnStoppedLeading: func() { fmt.Println("lost") },
			OnNewLeader:      func(identity string) { fmt.Println("leader", identity) },
		},
	})
}
