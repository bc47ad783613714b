package main

import (
	"context"
	"errors"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

type redsyncLibrary struct {
	sync  *redsync.Redsync
	mutex *redsync.Mutex
}

func newRedsync(client *redis.Client) library {
	return &redsyncLibrary{sync: redsync.New(goredis.NewPool(client))}
}

func (lib *redsyncLibrary) acquire(ctx context.Context, key string, ttl, wait time.Duration) error {
	mutex := lib.sync.NewMutex(key,
		redsync.WithExpiry(ttl), redsync.WithTries(attempts(wait)), redsync.WithRetryDelay(retryDelay))
	err := mutex.LockContext(ctx)
	var taken *redsync.ErrTaken
	if errors.As(err, &taken) {
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
