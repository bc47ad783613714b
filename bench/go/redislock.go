package main

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
)

const redislockSettings = "retries every 100 ms without limit (LinearBackoff, as in its example; default none); go-redis with its defaults (10 connections a core)"

type redislockLibrary struct {
	client *redislock.Client
	ttl    time.Duration
}

func openRedislock(ctx context.Context, o order) (library, error) {
	clients, err := connect(ctx, o.URLs)
	if err != nil {
		return nil, err
	}
	if len(clients) != 1 {
		return nil, errors.New("redislock: one server")
	}
	return &redislockLibrary{redislock.New(clients[0]), o.ttl()}, nil
}

func (lib *redislockLibrary) worker(context.Context) (worker, error) { return lib, nil }

func (lib *redislockLibrary) acquire(ctx context.Context, name string) (held, error) {
	// Without a deadline of ours it would stop waiting after one ttl.
	ctx, cancel := context.WithTimeout(ctx, 24*time.Hour)
	defer cancel()
	retries := redislock.LinearBackoff(100 * time.Millisecond)
	lock, err := lib.client.Obtain(ctx, name, lib.ttl, &redislock.Options{RetryStrategy: retries})
	return redislockHeld{lock}, err
}

type redislockHeld struct{ *redislock.Lock }

func (got redislockHeld) release(ctx context.Context) error { return got.Release(ctx) }
