// A lock over HTTP with nothing but the standard library: acquire, renew while working, release.
// TENURE_SERVICE=http://127.0.0.1:7420 go run . orders/42
package main

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"
)

const ttl = 10 * time.Second

// post answers the status, the token, and the lease's deadline, counted from before the request was sent. Without an
// answer the status is 0 and the deadline the one known before: ask again.
func post(path, body string, within time.Duration, known time.Time) (int, int64, time.Time) {
	sent, answer, client := time.Now(), struct{ Token, Expires_in_ms int64 }{}, http.Client{Timeout: within}
	response, err := client.Post(os.Getenv("TENURE_SERVICE")+path, "application/json", strings.NewReader(body))
	if err != nil || response.StatusCode == 503 || json.NewDecoder(response.Body).Decode(&answer) != nil {
		return 0, 0, known
	}
	return response.StatusCode, answer.Token, sent.Add(time.Duration(answer.Expires_in_ms) * time.Millisecond)
}

// left goes by the clock that leaves less: the monotonic one stands still while the machine sleeps.
func left(deadline time.Time) time.Duration {
	return min(time.Until(deadline), deadline.Round(0).Sub(time.Now().Round(0)))
}

func main() {
	claim := fmt.Sprintf(`{"name":%q,"owner":%q,"claim":%q`, os.Args[1], rand.Text(), rand.Text())
	status, token, deadline := 0, int64(0), time.Time{}
	for ; status == 0 || status == 202; time.Sleep(ttl / 100) { // the same claim again keeps its place in the queue
		status, token, deadline = post("/v1/acquire", claim+`,"ttl_ms":10000,"wait_ms":50000,"queue":true}`, time.Minute, deadline)
	}
	for step := 1; step <= 20; step++ {
		if left(deadline) < ttl/2 { // before the first step too: the lease may have been waited for longer than it lasts
			status, _, deadline = post("/v1/renew", claim+`,"ttl_ms":10000}`, ttl/6, deadline)
		}
		if left(deadline) < ttl/10 {
			panic(fmt.Sprint("no lease: the service answered ", status))
		}
		fmt.Println("step", step, "under token", token) // what is written to refuses tokens below the highest it has seen
		time.Sleep(ttl / 100)
	}
	post("/v1/release", claim+"}", ttl, deadline)
}
