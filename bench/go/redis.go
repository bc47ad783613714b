package main

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// connect makes a client with go-redis's defaults for each server, and one connection, so that `take` has it when it asks.
func connect(ctx context.Context, urls []string) ([]*redis.Client, error) {
	var clients []*redis.Client
	for _, url := range urls {
		options, err := redis.ParseURL(url)
		if err != nil {
			return nil, err
		}
		client := redis.NewClient(options)
		if err := client.Ping(ctx).Err(); err != nil {
			return nil, err
		}
		clients = append(clients, client)
	}
	return clients, nil
}
