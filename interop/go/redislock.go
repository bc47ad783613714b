package main

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
)

type redislockLibrary struct {
	client *redislock.Client
	lock   *redislock.Lock
}

func newRedislock(client *redis.Client) library {
	return &redislockLibrary{client: redislock.New(client)}
}

func (lib *redislockLibrary) acquire(ctx context.Context, key string, ttl, wait time.Duration) error {
	// Without a deadline of ours it would stop waiting after one ttl.
	ctx, cancel := context.WithTimeout(ctx, wait+10*time.Second)
	defer cancel()
	retries := redislock.LimitRetry(redislock.LinearBackoff(retryDelay), attempts(wait)-1)
	lock, err := lib.client.Obtain(ctx, key, ttl, &redislock.Options{RetryStrategy: retries})
	if errors.Is(err, redislock.ErrNotObtained) {
		return errBusy
	}
	if err == nil {
		lib.lock = lock
	}
	return err
}

func (lib *redislockLibrary) extend(ctx context.Context, ttl time.Duration) error {
	if lib.lock == nil {
		return errNotHeld
	}
	return lib.lock.Refresh(ctx, ttl, nil)
}

func (lib *redislockLibrary) held(ctx context.Context) error {
	if lib.lock == nil {
		return errNotHeld
	}
	left, err := lib.lock.TTL(ctx)
	if err == nil && left <= 0 {
		return errNotHeld
	}
	return err
}

func (lib *redislockLibrary) release(ctx context.Context) error {
	if lib.lock == nil {
		return errNotHeld
	}
	err := lib.lock.Release(ctx)
	lib.lock = nil
	return err
}
