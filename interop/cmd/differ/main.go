// Command differ sends the same random requests to etcd and to this server, and compares the whole answers.
//
//	differ -server ../target/release/kv-server -seconds 45
//	differ -server ... -seed 17 -requests 400        one round, as a failure prints it
//
// A round starts both servers empty. Its requests follow from its seed alone. At a difference the round is shortened
// while the difference remains, and printed as a script of interop/cases, with the seed.
//
// Left out, or compared by rule, is what docs/compatibility/behaviours.md lists as etcd's own quirks: see generate.go and compare.go.
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"time"
)

func main() {
	log.SetFlags(0)
	etcd := flag.String("etcd", "bin/etcd", "the reference")
	server := flag.String("server", os.Getenv("KV_SERVER_BIN"), "the server to compare")
	seed := flag.Uint64("seed", uint64(time.Now().Unix()), "seed of the first round")
	requests := flag.Int("requests", 400, "requests of a round")
	seconds := flag.Int("seconds", 0, "begin rounds for so long; 0: one round")
	flag.Parse()
	pair := pair{etcd: *etcd, server: *server}
	deadline := time.Now().Add(time.Duration(*seconds) * time.Second)
	rounds := 0
	for {
		steps := generate(*seed+uint64(rounds), *requests)
		different, err := pair.firstDifference(steps)
		if err != nil {
			log.Fatalf("seed %d: %v", *seed+uint64(rounds), err)
		}
		if different != nil {
			report(pair, *seed+uint64(rounds), *requests, steps[:different.step+1], different)
			os.Exit(1)
		}
		rounds++
		if !time.Now().Before(deadline) {
			break
		}
	}
	fmt.Printf("seed %d: %d rounds of %d requests, no difference\n", *seed, rounds, *requests)
}

// report shortens a failing round and prints it.
func report(pair pair, seed uint64, requests int, steps []step, different *difference) {
	fmt.Printf("difference in step %d of seed %d (-seed %d -requests %d); shortening\n",
		different.step+1, seed, seed, requests)
	steps, different = pair.shorten(steps, different)
	fmt.Printf("\n# seed %d\n", seed)
	for _, step := range steps {
		fmt.Println(step.line())
	}
	fmt.Printf("\netcd:   %s\nserver: %s\n", different.etcd, different.server)
}
