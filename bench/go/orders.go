package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

var orders = map[string]func(context.Context, order, library) error{
	"pairs": pairs, "hot": hot, "hold": hold, "take": take, "leases": leases,
}

// acquiring is how many leases are asked for at a time.
const acquiring = 256

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// started are the processes that this one has started and that have not ended: a lock may be one.
func started() []string {
	var all []string
	threads, _ := filepath.Glob("/proc/self/task/*/children")
	for _, thread := range threads {
		children, _ := os.ReadFile(thread)
		all = append(all, strings.Fields(string(children))...)
	}
	return all
}

// figures are numbers of a file of a process, from the one named on; none if it has ended.
func figures(process, file string, first, count int) []int64 {
	text, _ := os.ReadFile("/proc/" + process + "/" + file)
	// The name of a program may have spaces; nothing after it does.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	all := make([]int64, count)
	for i := range all {
		if first+i < len(fields) {
			all[i], _ = strconv.ParseInt(fields[first+i], 10, 64)
		}
	}
	return all
}

// cpu is the user and system time of this process so far, and of those it has started.
func cpu() time.Duration {
	var own, ended syscall.Rusage
	if err := errors.Join(syscall.Getrusage(syscall.RUSAGE_SELF, &own), syscall.Getrusage(syscall.RUSAGE_CHILDREN, &ended)); err != nil {
		fail(err)
	}
	used := time.Duration(own.Utime.Nano() + own.Stime.Nano() + ended.Utime.Nano() + ended.Stime.Nano())
	for _, process := range started() {
		for _, ticks := range figures(process, "stat", 11, 2) {
			used += time.Duration(ticks) * time.Second / 100
		}
	}
	return used
}

// resident is the resident memory in bytes of this process, and of those it has started.
func resident() int64 {
	var pages int64
	for _, process := range append(started(), "self") {
		pages += figures(process, "statm", 1, 1)[0]
	}
	return pages * int64(os.Getpagesize())
}

func pair(ctx context.Context, w worker, name string) error {
	got, err := w.acquire(ctx, name)
	if err != nil {
		return err
	}
	return got.release(ctx)
}

func workers(ctx context.Context, lib library, count int) ([]worker, error) {
	all := make([]worker, count)
	for task := range all {
		var err error
		if all[task], err = lib.worker(ctx); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// percentile is the nearest rank of sorted times, in microseconds.
func percentile(sorted []time.Duration, percent int) int64 {
	if len(sorted) == 0 {
		return 0
	}
	rank := (len(sorted)*percent + 99) / 100
	return sorted[rank-1].Microseconds()
}

func pairs(ctx context.Context, o order, lib library) error {
	all, err := workers(ctx, lib, o.Tasks)
	if err != nil {
		return err
	}
	begin := time.Now().Add(seconds(o.WarmupS))
	end := begin.Add(seconds(o.Seconds))
	took := make([][]time.Duration, o.Tasks)
	var ended atomic.Int64
	var tasks sync.WaitGroup
	for task, w := range all {
		tasks.Go(func() {
			names := make([]string, o.Names)
			for i := range names {
				names[i] = fmt.Sprintf("%s/%d/%d", o.Prefix, task, i)
			}
			for turn := 0; ; turn++ {
				asked := time.Now()
				if !asked.Before(end) {
					ended.Add(int64(turn))
					return
				}
				if err := pair(ctx, w, names[turn%len(names)]); err != nil {
					fail(err)
				}
				if done := time.Now(); !done.Before(begin) && !done.After(end) {
					took[task] = append(took[task], done.Sub(asked))
				}
			}
		})
	}
	time.Sleep(time.Until(begin))
	before := cpu()
	time.Sleep(time.Until(end))
	used := cpu() - before
	tasks.Wait()

	sorted := slices.Concat(took...)
	slices.Sort(sorted)
	say(map[string]any{
		"pairs": len(sorted), "all": ended.Load(), "seconds": o.Seconds, "cpu_s": used.Seconds(),
		"p50_us": percentile(sorted, 50), "p99_us": percentile(sorted, 99), "max_us": percentile(sorted, 100),
	})
	return nil
}

func hot(ctx context.Context, o order, lib library) error {
	all, err := workers(ctx, lib, o.Tasks)
	if err != nil {
		return err
	}
	own := fmt.Sprintf("%s/warmup-%d", o.Prefix, os.Getpid())
	for range o.WarmupPairs {
		if err := pair(ctx, all[0], own); err != nil {
			return err
		}
	}
	fmt.Println("ready")
	line, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err != nil {
		return err
	}
	startUs, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	if err != nil {
		return err
	}
	start := time.UnixMicro(startUs)
	time.Sleep(time.Until(start))
	before := cpu()

	var (
		noting sync.Mutex
		turns  = [][3]int64{}
		asked  = make([]time.Time, o.Tasks) // zero while it does not wait
	)
	for task, w := range all {
		go func() {
			for {
				since := time.Now()
				noting.Lock()
				asked[task] = since
				noting.Unlock()
				got, err := w.acquire(ctx, o.Name)
				if err != nil {
					fail(err)
				}
				now := time.Now()
				noting.Lock()
				turns = append(turns, [3]int64{now.Sub(start).Microseconds(), now.Sub(since).Microseconds(), int64(task)})
				asked[task] = time.Time{}
				noting.Unlock()
				if err := got.release(ctx); err != nil {
					fail(err)
				}
			}
		}()
	}
	time.Sleep(time.Until(start.Add(seconds(o.Seconds))))
	// Never given back: nothing that comes after the end is noted.
	noting.Lock()
	end, used := time.Now(), cpu()-before
	waiting := [][2]int64{}
	for task, since := range asked {
		if !since.IsZero() {
			waiting = append(waiting, [2]int64{int64(task), end.Sub(since).Microseconds()})
		}
	}
	say(map[string]any{"turns": turns, "waiting": waiting, "cpu_s": used.Seconds()})
	os.Exit(0)
	return nil
}

func hold(ctx context.Context, o order, lib library) error {
	w, err := lib.worker(ctx)
	if err != nil {
		return err
	}
	if _, err := w.acquire(ctx, o.Name); err != nil {
		return err
	}
	fmt.Println("held")
	for {
		time.Sleep(time.Hour)
	}
}

func take(ctx context.Context, o order, lib library) error {
	w, err := lib.worker(ctx)
	if err != nil {
		return err
	}
	fmt.Println("asking")
	got, err := w.acquire(ctx, o.Name)
	if err != nil {
		return err
	}
	say(map[string]any{"got_us": time.Now().UnixMicro()})
	return got.release(ctx)
}

func leases(ctx context.Context, o order, lib library) error {
	w, err := lib.worker(ctx)
	if err != nil {
		return err
	}
	memory := resident()
	all := make([]renewed, o.Leases)
	each := func(act func(i int) error) {
		var next atomic.Int64
		var tasks sync.WaitGroup
		for range acquiring {
			tasks.Go(func() {
				for i := int(next.Add(1)) - 1; i < o.Leases; i = int(next.Add(1)) - 1 {
					if err := act(i); err != nil {
						fail(err)
					}
				}
			})
		}
		tasks.Wait()
	}
	each(func(i int) error {
		got, err := w.acquire(ctx, fmt.Sprintf("%s/%d", o.Prefix, i))
		if err == nil {
			all[i] = got.(renewed)
		}
		return err
	})

	before, begin := cpu(), time.Now()
	time.Sleep(seconds(o.Seconds))
	used, lasted := cpu()-before, time.Since(begin)
	memory = resident() - memory

	var valid atomic.Int64
	each(func(i int) error {
		still, err := all[i].valid(ctx)
		if still {
			valid.Add(1)
		}
		return err
	})
	say(map[string]any{
		"leases": o.Leases, "held": valid.Load(), "bytes_per_lease": memory / int64(o.Leases),
		"cpu_percent": 100 * used.Seconds() / lasted.Seconds(),
	})
	return nil
}
