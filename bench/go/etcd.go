package main

import (
	"context"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

const etcdSettings = "session ttl as asked, in whole seconds (default 60), kept alive by the client; one client; " +
	"a session for each task, as a Mutex belongs to a session, but one for all leases of leases"

type etcdLibrary struct {
	client *clientv3.Client
	ttl    int
}

func endpoints(o order) []string {
	var all []string
	for _, url := range o.URLs {
		all = append(all, strings.TrimPrefix(url, "etcd://"))
	}
	return all
}

// wholeSeconds is the ttl as etcd has it.
func wholeSeconds(o order) int { return int((o.TTLMs + 999) / 1000) }

func openEtcd(ctx context.Context, o order) (library, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints(o), DialTimeout: 5 * time.Second})
	if err != nil {
		return nil, err
	}
	// It connects in the background, and a session would wait for that without end.
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if _, err := client.Get(ctx, "connected"); err != nil {
		return nil, err
	}
	return &etcdLibrary{client, wholeSeconds(o)}, nil
}

func (lib *etcdLibrary) worker(context.Context) (worker, error) {
	session, err := concurrency.NewSession(lib.client, concurrency.WithTTL(lib.ttl))
	return etcdWorker{session}, err
}

type etcdWorker struct{ *concurrency.Session }

func (w etcdWorker) acquire(ctx context.Context, name string) (held, error) {
	mutex := concurrency.NewMutex(w.Session, name)
	return etcdHeld{mutex, w.Client()}, mutex.Lock(ctx)
}

type etcdHeld struct {
	*concurrency.Mutex
	client *clientv3.Client
}

func (got etcdHeld) release(ctx context.Context) error { return got.Unlock(ctx) }

func (got etcdHeld) valid(ctx context.Context) (bool, error) {
	answer, err := got.client.Txn(ctx).If(got.IsOwner()).Commit()
	return err == nil && answer.Succeeded, err
}
