// Command client-go is a candidate of k8s.io/client-go/tools/leaderelection, as Go services have it, for tests that share one
// Lease between it and incumbent.
//
//	client-go KUBECONFIG NAMESPACE LEASE IDENTITY LEASE_SECONDS
//
// It prints "campaigning", "leader IDENTITY" whenever it sees another, "elected" when it leads, and "lost" when it no longer does.
// On SIGTERM it releases the Lease and ends with "released".
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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 6 {
		log.Fatal("usage: client-go KUBECONFIG NAMESPACE LEASE IDENTITY LEASE_SECONDS")
	}
	seconds, err := strconv.Atoi(os.Args[5])
	if err != nil {
		log.Fatalf("LEASE_SECONDS: %v", err)
	}
	if err := campaign(os.Args[1], os.Args[2], os.Args[3], os.Args[4], seconds); err != nil {
		log.Fatal(err)
	}
}

func campaign(kubeconfig, namespace, lease, identity string, seconds int) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("read %s: %w", kubeconfig, err)
	}
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	lock := &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Name: lease, Namespace: namespace},
		Client:     clients.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
	}
	// The defaults are 15, 10 and 2 s.
	duration := time.Duration(seconds) * time.Second
	fmt.Println("campaigning")
	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
		Lock:            lock,
		LeaseDuration:   duration,
		RenewDeadline:   duration * 2 / 3,
		RetryPeriod:     duration * 2 / 15,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { fmt.Println("elected") },
			OnStoppedLeading: func() { fmt.Println("lost") },
			OnNewLeader:      func(identity string) { fmt.Println("leader", identity) },
		},
	})
	if ctx.Err() != nil {
		fmt.Println("released")
	}
	return nil
}
