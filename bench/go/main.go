// Lock libraries of Go as contestants (see ../README.md).
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"
)

// order is what a contestant is told.
type order struct {
	Do          string   `json:"do"`
	Peer        string   `json:"peer"`
	Store       string   `json:"store"`
	URLs        []string `json:"urls"`
	TTLMs       int64    `json:"ttl_ms"`
	Tasks       int      `json:"tasks"`
	Names       int      `json:"names"`
	Leases      int      `json:"leases"`
	Name        string   `json:"name"`
	Prefix      string   `json:"prefix"`
	WarmupS     float64  `json:"warmup_s"`
	WarmupPairs int      `json:"warmup_pairs"`
	Seconds     float64  `json:"seconds"`
}

func (o order) ttl() time.Duration { return time.Duration(o.TTLMs) * time.Millisecond }

// library is a lock library with its one client, connected.
type library interface {
	// worker makes what each task needs for itself.
	worker(ctx context.Context) (worker, error)
}

type worker interface {
	// acquire waits as long as it takes.
	acquire(ctx context.Context, name string) (held, error)
}

type held interface {
	release(ctx context.Context) error
}

// renewed is what a library keeps by itself while it is held.
type renewed interface {
	held
	valid(ctx context.Context) (bool, error)
}

type peer struct {
	Peer     string `json:"peer"`
	Store    string `json:"store"`
	Library  string `json:"library"`
	Version  string `json:"version"`
	Settings string `json:"settings"`
	Renews   bool   `json:"renews"`
	open     func(ctx context.Context, o order) (library, error)
	// version tells it where no module does.
	version func() (string, error)
}

var peers = []peer{
	{Peer: "redsync", Store: "redis", Library: "github.com/go-redsync/redsync/v4", Settings: redsyncSettings, open: openRedsync},
	{Peer: "redsync", Store: "redlock", Library: "github.com/go-redsync/redsync/v4", Settings: redsyncSettings, open: openRedsync},
	{Peer: "redislock", Store: "redis", Library: "github.com/bsm/redislock", Settings: redislockSettings, open: openRedislock},
	{Peer: "etcd-concurrency", Store: "etcd", Library: "go.etcd.io/etcd/client/v3", Settings: etcdSettings, Renews: true, open: openEtcd},
	{Peer: "etcdctl", Store: "etcd", Library: "etcdctl", Settings: etcdctlSettings, Renews: true, open: openEtcdctl, version: etcdctlVersion},
}

func list() {
	versions := map[string]string{}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			versions[module.Path] = strings.TrimPrefix(module.Version, "v")
		}
	}
	for _, each := range peers {
		each.Version = versions[each.Library]
		if each.version != nil {
			var err error
			if each.Version, err = each.version(); err != nil {
				// Named all the same: whoever asks it for something is told so again.
				each.Version = err.Error()
			}
		}
		say(each)
	}
}

func say(answer any) {
	if err := json.NewEncoder(os.Stdout).Encode(answer); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func carryOut(ctx context.Context, o order) error {
	if o.Do == "list" {
		list()
		return nil
	}
	todo, known := orders[o.Do]
	if !known {
		return fmt.Errorf("no such order: %q", o.Do)
	}
	for _, each := range peers {
		if each.Peer != o.Peer || each.Store != o.Store {
			continue
		}
		if o.Do == "leases" && !each.Renews {
			return fmt.Errorf("%s does not renew", o.Peer)
		}
		lib, err := each.open(ctx, o)
		if err != nil {
			return err
		}
		return todo(ctx, o, lib)
	}
	return fmt.Errorf("no such contestant: %q over %q", o.Peer, o.Store)
}

func main() {
	if len(os.Args) != 2 {
		fail(errors.New("usage: driver ORDER"))
	}
	var o order
	if err := json.Unmarshal([]byte(os.Args[1]), &o); err != nil {
		fail(err)
	}
	if err := carryOut(context.Background(), o); err != nil {
		fail(err)
	}
}
