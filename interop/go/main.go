// Lock clients of Go, driven by lines of JSON (see ../README.md).
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/redis/go-redis/v9"
)

// retryDelay is the pause between two attempts while a driver waits.
const retryDelay = 50 * time.Millisecond

// attempts is how many attempts fill a wait.
func attempts(wait time.Duration) int { return 1 + int((wait+retryDelay-1)/retryDelay) }

var (
	errBusy    = errors.New("busy")
	errNotHeld = errors.New("not held")
)

// library is a lock client that holds one lock at most.
type library interface {
	// acquire fails with errBusy if others have the lock all the time.
	acquire(ctx context.Context, key string, ttl, wait time.Duration) error
	extend(ctx context.Context, ttl time.Duration) error
	held(ctx context.Context) error
	release(ctx context.Context) error
}

type request struct {
	Op     string `json:"op"`
	Key    string `json:"key"`
	TTLMs  int64  `json:"ttl_ms"`
	WaitMs int64  `json:"wait_ms"`
}

type answer struct {
	OK  bool   `json:"ok"`
	Why string `json:"why,omitempty"`
}

func act(ctx context.Context, lib library, asked request) error {
	ttl := time.Duration(asked.TTLMs) * time.Millisecond
	wait := time.Duration(asked.WaitMs) * time.Millisecond
	switch asked.Op {
	case "acquire":
		return lib.acquire(ctx, asked.Key, ttl, wait)
	case "extend":
		return lib.extend(ctx, ttl)
	case "held":
		return lib.held(ctx)
	case "release":
		return lib.release(ctx)
	case "quit":
		return nil
	}
	return fmt.Errorf("no such op: %s", asked.Op)
}

// connect makes a client that asks once: a server that is away is one vote less, and redsync waits for all votes.
func connect(url string) *redis.Client {
	options, err := redis.ParseURL(url)
	if err != nil {
		log.Fatal(err)
	}
	options.MaxRetries = -1
	options.DialerRetries = 1
	return redis.NewClient(options)
}

func open(name string, urls []string) (library, error) {
	if name == "etcd" && len(urls) > 0 {
		return newEtcd(urls)
	}
	var clients []*redis.Client
	for _, url := range urls {
		clients = append(clients, connect(url))
	}
	switch {
	case name == "redsync" && len(clients) > 0:
		return newRedsync(clients), nil
	case name == "redislock" && len(clients) == 1:
		return newRedislock(clients[0]), nil
	}
	return nil, fmt.Errorf("no such library: %q on %d servers", name, len(urls))
}

func main() {
	name := flag.String("library", "", "redsync, redislock or etcd")
	flag.Parse()
	lib, err := open(*name, flag.Args())
	if err != nil {
		log.Fatal(err)
	}

	lines, answers := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var asked request
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			log.Fatal(err)
		}
		said := answer{OK: true}
		if err := act(context.Background(), lib, asked); err != nil {
			said = answer{Why: err.Error()}
		}
		if err := answers.Encode(said); err != nil || asked.Op == "quit" {
			return
		}
	}
}
