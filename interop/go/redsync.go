package main

import (
	"context"
	"time"

	"github.com/go-redsync/redsync/v4"
	pools "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

type redsyncLibrary struct {
	sync  *redsync.Redsync
	mutex *redsync.Mutex
	// spare is how many servers a lock can do without.
	spare int
}

func newRedsync(clients []*redis.Client) library {
	var all []pools.Pool
	for _, client := range clients {
		all = append(all, goredis.NewPool(client))
	}
	return &redsyncLibrary{sync: redsync.New(all...), spare: (len(all) - 1) / 2}
}

// isBusy tells whether an attempt failed because others hold the lock, with enough servers there to say so.
func (lib *redsyncLibrary) isBusy(err error) bool {
	taken, away := votes(err)
	return taken > 0 && away <= lib.spare
}

// votes counts the servers that refused the lock, and those that did not answer.
func votes(err error) (taken, away int) {
	switch err := err.(type) {
	case *redsync.ErrTaken:
		return len(err.Nodes), 0
	case *redsync.ErrNodeTaken:
		return 1, 0
	case *redsync.RedisError:
		return 0, 1
	case interface{ Unwrap() []error }:
		for _, each := range err.Unwrap() {
			takenThere, awayThere := votes(each)
			taken, away = taken+takenThere, away+awayThere
		}
	}
	return taken, away
}

func (lib *redsyncLibrary) acquire(ctx context.Context, key string, ttl, wait time.Duration) error {
	mutex := lib.sync.NewMutex(key,
		redsync.WithExpiry(ttl), redsync.WithTries(attempts(wait)), redsync.WithRetryDelay(retryDelay))
	err := mutex.LockContext(ctx)
	if lib.isBusy(err) {
		return errBusy
	}
	if err == nil {
		lib.mutex = mutex
	}
	return err
}

// extend takes the ttl of the acquire: a mutex of redsync has one expiry.
func (lib *redsyncLibrary) extend(ctx context.Context, _ time.Duration) error {
	if lib.mutex == nil {
		return errNotHeld
	}
	extended, err := lib.mutex.ExtendContext(ctx)
	if err == nil && !extended {
		return errNotHeld
	}
	return err
}

func (lib *redsyncLibrary) held(context.Context) error {
	if lib.mutex == nil || !time.Now().Before(lib.mutex.Until()) {
		return errNotHeld
	}
	return nil
}

func (lib *redsyncLibrary) release(ctx context.Context) error {
	if lib.mutex == nil {
		return errNotHeld
	}
	released, err := lib.mutex.UnlockContext(ctx)
	if err == nil && !released {
		return errNotHeld
	}
	lib.mutex = nil
	return err
}
