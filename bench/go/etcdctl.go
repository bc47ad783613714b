package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

const etcdctlSettings = "etcdctl lock --ttl as asked, in whole seconds (default 10); a process for each lock held or asked for, which connects and " +
	"has a session of its own; released by SIGINT; its CPU and memory are counted"

// etcdctlVersion is that of the command, if there is one.
func etcdctlVersion() (string, error) {
	told, err := exec.Command("etcdctl", "version").Output()
	if errors.Is(err, exec.ErrNotFound) {
		return "", errors.New("no etcdctl: install Debian's etcd-client")
	}
	first, _, _ := strings.Cut(string(told), "\n")
	return strings.TrimPrefix(first, "etcdctl version: "), err
}

type etcdctlLibrary []string

func openEtcdctl(_ context.Context, o order) (library, error) {
	ttl := strconv.Itoa(wholeSeconds(o))
	return etcdctlLibrary{"--endpoints", strings.Join(endpoints(o), ","), "lock", "--ttl", ttl}, nil
}

func (lib etcdctlLibrary) worker(context.Context) (worker, error) { return lib, nil }

func (lib etcdctlLibrary) acquire(_ context.Context, name string) (held, error) {
	lock := etcdctlHeld{exec.Command("etcdctl", append(lib[:len(lib):len(lib)], name)...), make(chan error, 1)}
	// What it holds stays for its ttl, as if it had been killed itself.
	lock.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	lock.Env = append(os.Environ(), "ETCDCTL_API=3")
	var said bytes.Buffer
	lock.Stderr = &said
	stdout, err := lock.StdoutPipe()
	if err == nil {
		err = lock.Start()
	}
	if err != nil {
		return nil, err
	}
	_, err = bufio.NewReader(stdout).ReadString('\n')
	go func() { lock.ended <- lock.Wait() }()
	if err != nil {
		return nil, fmt.Errorf("etcdctl: %w: %s", <-lock.ended, said.String())
	}
	return lock, nil
}

type etcdctlHeld struct {
	*exec.Cmd
	ended chan error
}

func (got etcdctlHeld) release(context.Context) error {
	if err := got.Process.Signal(syscall.SIGINT); err != nil {
		return err
	}
	return <-got.ended
}

// valid is true while the process lives: it ends with its session.
func (got etcdctlHeld) valid(context.Context) (bool, error) { return len(got.ended) == 0, nil }
