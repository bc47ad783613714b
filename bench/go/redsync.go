package main

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/go-redsync/redsync/v4"
	pools "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
)

const redsyncSettings = "expiry as asked, tries without limit (default 32) at the default 50 to 250 ms apart; go-redis with its defaults (10 connections a core)"

type redsyncLibrary struct {
	sync *redsync.Redsync
	ttl  time.Duration
}

func openRedsync(ctx context.Context, o order) (library, error) {
	clients, err := connect(ctx, o.URLs)
	if err != nil {
		return nil, err
	}
	var all []pools.Pool
	for _, client := range clients {
		all = append(all, goredis.NewPool(client))
	}
	return &redsyncLibrary{redsync.New(all...), o.ttl()}, nil
}

func (lib *redsyncLibrary) worker(context.Context) (worker, error) { return lib, nil }

func (lib *redsyncLibrary) acquire(ctx context.Context, name string) (held, error) {
	mutex := lib.sync.NewMutex(name, redsync.WithExpiry(lib.ttl), redsync.WithTries(math.MaxInt))
	return redsyncHeld{mutex}, mutex.LockContext(ctx)
}

type redsyncHeld struct{ *redsync.Mutex }

func (got redsyncHeld) release(ctx context.Context) error {
	released, err := got.UnlockContext(ctx)
	if err == nil && !released {
		return errors.New("redsync: not released")
	}
	return err
}
