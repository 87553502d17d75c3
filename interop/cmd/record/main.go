// Command record tells every script of interop/cases to a fresh etcd and writes down what it answers.
//
//	record -etcd bin/etcd -cases cases -out ../crates/kv-server/tests/conformance/recordings
//	record -check ...        writes nothing: fails where etcd answers other than recorded
//
// Recordings hold the request bytes as they were sent and the answer bytes as they came, with the few fields masked
// that differ from run to run. Recording twice gives the same files; a difference in version control is a finding.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"

	"kv-server/interop/internal/script"
)

// sessionsMax is how many etcds run at once: starting one is mostly waiting for its election.
const sessionsMax = 4

func main() {
	log.SetFlags(0)
	etcd := flag.String("etcd", "bin/etcd", "server to record")
	cases := flag.String("cases", "cases", "directory of the scripts")
	out := flag.String("out", "../crates/kv-server/tests/conformance/recordings", "directory of the recordings")
	check := flag.Bool("check", false, "compare with the recordings instead of writing them")
	flag.Parse()
	if err := run(*etcd, *cases, *out, *check, flag.Args()); err != nil {
		log.Fatal(err)
	}
}

// run records the scripts with the given names, or all of them.
func run(etcd, cases, out string, check bool, names []string) error {
	paths, err := filepath.Glob(filepath.Join(cases, "*.txt"))
	if err != nil {
		return err
	}
	sort.Strings(paths)
	var scripts []*script.Script
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".txt")
		if len(names) > 0 && !contains(names, name) {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		parsed, err := script.Parse(name, string(text))
		if err != nil {
			return err
		}
		scripts = append(scripts, parsed)
	}
	if len(scripts) == 0 {
		return fmt.Errorf("no script in %s", cases)
	}
	return recordAll(etcd, out, check, scripts)
}

func contains(names []string, name string) bool {
	for _, n := range names {
		if n == name {
			return true
		}
	}
	return false
}

func recordAll(etcd, out string, check bool, scripts []*script.Script) error {
	var all sync.WaitGroup
	var lock sync.Mutex
	cases, steps, failures := 0, 0, 0
	slots := make(chan struct{}, sessionsMax)
	for _, s := range scripts {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			err := recordOne(etcd, out, check, s)
			lock.Lock()
			defer lock.Unlock()
			cases += s.Cases()
			steps += len(s.Steps)
			if err != nil {
				failures++
				log.Printf("%s: %v", s.Name, err)
			}
		})
	}
	all.Wait()
	fmt.Printf("%d scripts, %d cases, %d steps, %d failed\n", len(scripts), cases, steps, failures)
	if failures > 0 {
		return fmt.Errorf("%d scripts failed", failures)
	}
	return nil
}

func recordOne(etcd, out string, check bool, s *script.Script) error {
	recording, err := tell(etcd, s)
	if err != nil {
		return err
	}
	text := recording.encode()
	path := filepath.Join(out, s.Name+".json")
	if !check {
		return os.WriteFile(path, text, 0o644)
	}
	recorded, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if !bytes.Equal(recorded, text) {
		return fmt.Errorf("etcd answers other than recorded:\n%s", firstDifference(recorded, text))
	}
	return nil
}

func firstDifference(recorded, now []byte) string {
	a, b := strings.Split(string(recorded), "\n"), strings.Split(string(now), "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("line %d\n- %s\n+ %s", i+1, a[i], b[i])
		}
	}
	return fmt.Sprintf("%d lines recorded, %d now", len(a), len(b))
}
