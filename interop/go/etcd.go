package main

import (
	"context"
	"errors"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// etcdLibrary is etcd's own mutex: a session for each lock, so that its ttl is the lock's.
type etcdLibrary struct {
	client  *clientv3.Client
	session *concurrency.Session
	mutex   *concurrency.Mutex
}

func newEtcd(urls []string) (library, error) {
	var endpoints []string
	for _, url := range urls {
		endpoints = append(endpoints, strings.TrimPrefix(url, "etcd://"))
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 5 * time.Second})
	return &etcdLibrary{client: client}, err
}

func (lib *etcdLibrary) acquire(ctx context.Context, key string, ttl, wait time.Duration) error {
	seconds := int((ttl + time.Second - 1) / time.Second)
	session, err := concurrency.NewSession(lib.client, concurrency.WithTTL(seconds))
	if err != nil {
		return err
	}
	mutex := concurrency.NewMutex(session, key)
	if wait == 0 {
		err = mutex.TryLock(ctx)
	} else {
		waiting, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		err = mutex.Lock(waiting)
	}
	if err == nil {
		lib.session, lib.mutex = session, mutex
		return nil
	}
	_ = session.Close()
	if errors.Is(err, concurrency.ErrLocked) || errors.Is(err, context.DeadlineExceeded) {
		return errBusy
	}
	return err
}

func (lib *etcdLibrary) extend(context.Context, time.Duration) error {
	return errors.New("its session keeps it alive")
}

func (lib *etcdLibrary) held(ctx context.Context) error {
	if lib.mutex == nil {
		return errNotHeld
	}
	told, err := lib.client.Txn(ctx).If(lib.mutex.IsOwner()).Commit()
	if err == nil && !told.Succeeded {
		return errNotHeld
	}
	return err
}

func (lib *etcdLibrary) release(ctx context.Context) error {
	if lib.mutex == nil {
		return errNotHeld
	}
	err := lib.mutex.Unlock(ctx)
	_ = lib.session.Close()
	lib.session, lib.mutex = nil, nil
	return err
}
